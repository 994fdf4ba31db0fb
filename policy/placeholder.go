package policy

// Schema placeholder
func Schema() []byte { return nil }
