package policy

func (r *Rules) String() string { return "" }
