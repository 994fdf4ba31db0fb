package adminapi

import "github.com/penstock/penstock/cmd/penstock/internal/redact"

// ref stands for the name of a key. Equal names have equal refs.
func (h *Handler) ref(name string) string { return h.masks.Ref(name) }

// identity returns what a viewer may see of the key with a name in the store.
func (h *Handler) identity(v Viewer, name string) string { return h.masks.Of(v.isOperator, name) }

// shown returns how identities are shown to a viewer.
func (h *Handler) shown(v Viewer) string { return h.masks.Shown(v.isOperator) }

// mask hides the values of a key. The kinds stay.
func mask(key string) string { return redact.Mask(key) }
