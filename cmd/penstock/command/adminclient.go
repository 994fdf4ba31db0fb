package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
	"github.com/penstock/penstock/cmd/penstock/internal/console/adminclient"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
	"github.com/penstock/penstock/internal/wording"
)

// adminFlags are the flags by which a command reaches the admin address of a running instance.
type adminFlags struct{ adminclient.Options }

func (f *adminFlags) add(c *cobra.Command, purpose string) {
	c.Flags().StringVar(&f.Address, "admin", "", purpose+"; the --admin-listen of its serve, as host:port, https://host:port or unix:/path/of.sock")
	c.Flags().StringVar(&f.CA, "admin-ca", "", "PEM file of the authorities of the admin address' certificate (default: those of the system)")
	c.Flags().StringVar(&f.Cert, "admin-cert", "", "PEM file of a client certificate for the admin address")
	c.Flags().StringVar(&f.Key, "admin-key", "", "PEM file of the private key of that certificate")
}

// explainFlagError says what to write instead of a flag that c lacks or that was removed, and
// instead of a value of the wrong type. It returns other errors as they are.
func explainFlagError(c *cobra.Command, err error) error {
	unknown, _ := strings.CutPrefix(err.Error(), "unknown flag: --")
	has := func(name string) bool { return c.Flags().Lookup(name) != nil }
	switch {
	case unknown == "admin-listen" && has("admin"):
		return errors.New("only serve has --admin-listen, the address at which it listens; write --admin ADDRESS to reach a running instance there")
	case unknown == "admin" && has("admin-listen"):
		return errors.New("--admin is the address of a running instance, for commands such as status; write --admin-listen ADDRESS for the address at which this one listens")
	case settings.Removed(unknown) != "":
		return fmt.Errorf("there is no --%s any more; %s", unknown, settings.Removed(unknown))
	}
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if wanted := wantedValues[invalid.GetFlag().Value.Type()]; wanted != "" {
			return fmt.Errorf("--%s is %q; write %s", invalid.GetFlag().Name, wording.Clip(invalid.GetValue()), wanted)
		}
	}
	return err
}

// wantedValues says what to write for a flag, by the type of the flag.
var wantedValues = map[string]string{
	"int": "a whole number", "int64": "a whole number", "uint64": "a whole number from 0", "float64": "a number", "bool": "true or false",
	"intSlice": "whole numbers, with commas between them", "duration": "a time, such as 100ms, 30s, 5m or 2h",
}

// setDefault takes the address from the environment, or else the default, if no flag has set it.
func (f *adminFlags) setDefault() error {
	if f.Address != "" {
		return nil
	}
	s, err := settings.Load(settings.Sources{Environ: os.Environ(), Only: []string{"admin-listen"}})
	if err != nil {
		return err
	}
	if s.AdminListen == "" {
		return errors.New("PENSTOCK_ADMIN_LISTEN is off, so there is no admin address; write --admin 127.0.0.1:9180")
	}
	f.Address = s.AdminListen
	return nil
}

func (f *adminFlags) openOrDefault() (*admin, error) {
	if err := f.setDefault(); err != nil {
		return nil, err
	}
	return f.openAsOperator()
}

func (f *adminFlags) openAsOperator() (*admin, error) {
	token, err := operatorToken()
	if err != nil {
		return nil, err
	}
	return f.open(token)
}

func (f *adminFlags) open(token credential) (*admin, error) {
	o := f.Options
	o.Token = token.text
	client, err := adminclient.New(o)
	if err != nil {
		return nil, withStatus(exitUsage, err)
	}
	return &admin{client, f.Address, token}, nil
}

// An admin is the admin API of a running instance.
type admin struct {
	*adminclient.Client
	address string
	token   credential
}

// send sends a request to the admin API, and decodes its response into one of the API's types. The
// request is a POST if there is a body, and otherwise a GET.
func (a *admin) send(ctx context.Context, path string, body []byte, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, 2*storeTimeout) // the instance may wait for its store
	defer cancel()
	status, text, err := a.Send(ctx, adminapi.Prefix+path, body)
	if err != nil {
		return withStatus(exitUnreachable, err)
	}
	if status != http.StatusOK {
		return a.errRefused(status, text)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return a.errNotTheAPI()
	}
	return nil
}

// refusal returns the error for an answer of an instance with a status other than 200.
// tokenVariable is the environment variable that has the token.
func refusal(address string, status int, detail, tokenVariable string) error {
	code := exitUsage
	switch status {
	case http.StatusUnauthorized:
		code, detail = exitInvalid, fmt.Sprintf("%s (set %s or %s_FILE)", detail, tokenVariable, tokenVariable)
	case http.StatusForbidden:
		code = exitInvalid
	case http.StatusInternalServerError: // such as an audit file on a full disk
		code = exitInternal
	case http.StatusServiceUnavailable:
		code = exitUnreachable
	}
	return withStatus(code, fmt.Errorf("%s returned status %d: %s", address, status, detail))
}

func (a *admin) errRefused(status int, text []byte) error {
	if status == http.StatusUnauthorized && a.token.isTooShort {
		return errShortToken
	}
	var problem adminapi.Problem
	_ = json.Unmarshal(text, &problem) // if it fails, Detail is ""
	return refusal(a.address, status, cmp.Or(shortened(problem.Detail), notTheAPI), "PENSTOCK_OPERATOR_TOKEN")
}

// explainMissingToken returns the error for a reset without a token. It tries to read a key, which
// every instance refuses without the token. The refusal says whether the instance has an
// operator_token at all.
func (a *admin) explainMissingToken(ctx context.Context) error {
	if _, err := a.fetchKey(ctx, keyQuery{key: "global"}); err != nil {
		return err
	}
	return withStatus(exitInvalid, errors.New("an instance resets keys for operators only; set PENSTOCK_OPERATOR_TOKEN or PENSTOCK_OPERATOR_TOKEN_FILE to its operator_token"))
}

// maxDetail is how many characters of an instance's text a message shows at most.
const maxDetail = 1000

// shortened returns a text of an instance on one line, cut to maxDetail characters.
func shortened(text string) string {
	text = printable.Line(strings.TrimSpace(text))
	if characters := []rune(text); len(characters) > maxDetail {
		text = string(characters[:maxDetail]) + "…"
	}
	return text
}

const notTheAPI = "the answer is not that of the admin API; check that --admin is the admin-listen address of an instance"

func (a *admin) errNotTheAPI() error {
	return withStatus(exitUsage, fmt.Errorf("%s: %s", a.address, notTheAPI))
}

// A credential is the token of operators. The text is "" if there is no token, or if the token is
// shorter than any instance accepts. Without a token, clients on an instance's own machine may
// still read its state.
type credential struct {
	text       string
	isTooShort bool
}

var errShortToken = withStatus(exitInvalid, errors.New("the token is wrong or too short; set PENSTOCK_OPERATOR_TOKEN or PENSTOCK_OPERATOR_TOKEN_FILE to the operator_token of the instance"))

func operatorToken() (credential, error) {
	s, err := settings.Load(settings.Sources{Environ: os.Environ(), Only: []string{"operator-token"}})
	if errors.Is(err, settings.ErrShortToken) {
		return credential{isTooShort: true}, nil
	}
	return credential{text: string(s.OperatorToken)}, err
}

// openInstead opens the admin API for a command that would otherwise use the store. It fails if a
// flag of storeFlags is given, because a running instance has its own settings.
func (f *adminFlags) openInstead(c *cobra.Command, given *storeFlags) (*admin, error) {
	for name := range given.texts {
		if c.Flags().Changed(name) {
			return nil, withStatus(exitUsage, fmt.Errorf("--admin reads from a running instance, which has its own --%s; omit one of them", name))
		}
	}
	return f.openAsOperator()
}
