package adminapi

import "github.com/penstock/penstock/cmd/penstock/internal/text/redact"

// ref returns the short name that stands for a masked key. Equal keys have equal refs.
func (h *Handler) ref(name string) string { return h.masks.Ref(name) }

// identity returns the part that a viewer may see of a key. name is the key's name in the store.
func (h *Handler) identity(v Viewer, name string) string { return h.masks.Of(v.isOperator, name) }

// shown returns ShowOff, ShowMasked or ShowFull for a viewer.
func (h *Handler) shown(v Viewer) string { return h.masks.Shown(v.isOperator) }

// mask hides the values of a key and keeps their kinds: user:42 becomes user:….
func mask(key string) string { return redact.Mask(key) }
