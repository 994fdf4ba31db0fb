package doctor

import "strings"

// shellWord quotes a word for a POSIX shell. It uses single quotes if the word has characters that
// the shell may interpret, as in +script|load and ~ps1*.
func shellWord(word string) string {
	const harmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-_./:,@%="
	if word != "" && strings.Trim(word, harmless) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// grant returns the command line that gives rights to the user on a server. rights has the form of
// a StoreError's hint: words such as "+set" and "~ps1*", or a sentence.
func (d *doctor) grant(s *server, rights string) string {
	line := d.cli(s, "ACL SETUSER "+shellWord(d.user()))
	for word := range strings.FieldsSeq(rights) {
		if word[0] != '+' && word[0] != '~' {
			return "grant the user " + d.user() + ": " + rights
		}
		line += " " + shellWord(word)
	}
	return line
}
