package fieldvalues

// Texts are the values of a section of a policy file whose keys come from a list, not from the
// fields of a struct. The struct of the section embeds Texts.
type Texts struct {
	Known   map[string]bool    // the keys that the file may have; true: the value is a secret
	Removed map[string]string  // keys of earlier versions, and what to do about each
	Values  map[string]*string // by key, for every known key; "": the file does not have it
}

// Self returns t. Package policyfile finds the Texts of a section by this method.
func (t *Texts) Self() *Texts { return t }
