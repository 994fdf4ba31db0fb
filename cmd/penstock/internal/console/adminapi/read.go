package adminapi

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"

	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
)

// Read returns the body that a GET of a path below Prefix would return, for pages of this process.
// T is the type of the body. StatusOf returns the status of an error.
func Read[T any](ctx context.Context, h *Handler, v Viewer, path string, query url.Values) (body T, err error) {
	i := slices.IndexFunc(routes, func(r route) bool { return r.path == path })
	values, err := routes[i].values(query.Encode())
	if err != nil {
		return body, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	made, err := routes[i].respond(h, ctx, v, values)
	if err != nil {
		return body, err
	}
	switch made := made.(type) {
	case T:
		return made, nil
	case *T:
		return *made, nil
	}
	return body, refuse(http.StatusInternalServerError, "%s has no body of the type %T", path, body)
}

// ReadState returns the state, which may be up to a second old. The caller must not change it.
func (h *Handler) ReadState(ctx context.Context) *State {
	_ = h.state(ctx)
	h.stateCache.mu.Lock()
	defer h.stateCache.mu.Unlock()
	return h.stateCache.state
}

// Reset resets a key for a request to a page of this process. token comes from the page's form; if
// it is "", the request itself must have the token or a session.
func (h *Handler) Reset(req *http.Request, token string, wanted ResetRequest) (*keylimits.Reset, error) {
	ctx, cancel := context.WithTimeout(req.Context(), timeout)
	defer cancel()
	a := newAudit(req)
	done, err := func() (*keylimits.Reset, error) {
		v, err := h.ViewerOf(req)
		if err == nil && token != "" {
			v, err = h.ViewerOfToken(token)
		}
		if err == nil {
			err = h.requireOperator(v, "a reset")
		}
		if err == nil {
			err = wanted.check()
		}
		if err != nil {
			return nil, err
		}
		return h.reset(ctx, wanted, &a)
	}()
	h.record(&a, err)
	return done, err
}

// StatusOf returns the HTTP status of an error of this package.
func StatusOf(err error) int {
	if r, ok := errors.AsType[refusal](err); ok {
		return r.status
	}
	return http.StatusInternalServerError
}
