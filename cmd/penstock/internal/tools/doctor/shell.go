package doctor

import (
	"strings"

	"github.com/penstock/penstock/cmd/penstock/internal/text/rediscli"
)

// grant returns the command line that gives rights to the user on a server. rights has the form of
// a StoreError's hint: words such as "+set" and "~ps1*", or a sentence.
func (d *doctor) grant(s *server, rights string) string {
	line := d.cli(s, "ACL SETUSER "+rediscli.Word(d.user()))
	for word := range strings.FieldsSeq(rights) {
		if word[0] != '+' && word[0] != '~' {
			return "grant the user " + d.user() + ": " + rights
		}
		line += " " + rediscli.Word(word)
	}
	return line
}
