package checkapi

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
)

// An idContent is the content of the id of a reservation or of a hold. The id is the encrypted and
// authenticated content. Only processes with the same secret can read or write one. The names in
// JSON are short, because the content is a part of the id.
type idContent struct {
	Name         string     `json:"n"`           // unique
	Expires      int64      `json:"e"`           // of a reservation: Unix ms
	TTL          int64      `json:"t"`           // of a reservation: ms
	IsNameShared bool       `json:"o,omitempty"` // of a reservation: a repeat of the Reserve gets the same Name; see admission.SharedName
	Region       string     `json:"g,omitempty"` // whose store made the charges; "" if it has no name
	Charges      []idCharge `json:"c,omitempty"`
}

type idCharge struct {
	Rule    string `json:"r,omitempty"` // empty for a caller limit
	Limit   string `json:"l,omitempty"` // empty for a caller limit
	Variant int    `json:"v,omitempty"` // the index of the plan in policy.Limit.Variants
	Spec    *spec  `json:"s,omitempty"` // nil for a limit of the policy
	Key     string `json:"k"`
	Cost    int64  `json:"u"`
	Holder  string `json:"h,omitempty"`

	Receipt int64 `json:"rc,omitempty"` // of the charge; 0 if its algorithm has none
}

// The kinds of ids. An id of one kind is refused where the other kind is needed.
const (
	reservationKind = "reservation"
	holdKind        = "hold"
)

// maxIDLength is the length of the longest id, in bytes. An id is longer than 600 kB only if its
// 64 charges have the longest key and the longest holder, and JSON escapes each character of them
// by six bytes.
const maxIDLength = 768 << 10

// An idCipher writes and reads the ids of one region.
type idCipher struct {
	aead   cipher.AEAD
	region string // Options.Region
}

func newIDCipher(secret []byte, region string) *idCipher {
	key := sha256.Sum256(append([]byte("penstock tickets 1\n"), secret...))
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // impossible: AES takes keys of 32 bytes
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // impossible: GCM takes ciphers with blocks of 16 bytes
	}
	return &idCipher{aead, region}
}

// encrypt returns the id of a content. The kind is authenticated with it. encrypt sets the region.
func (s *idCipher) encrypt(kind string, content *idContent) (string, error) {
	content.Region = s.region
	text, err := json.Marshal(content)
	if err != nil {
		return "", fmt.Errorf("checkapi: write an id: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, text, []byte(kind))), nil
}

// decrypt returns the content of an id. It fails if the kind, the secret or the region is another.
// Each region has its own store, which alone remembers what was settled. So if two regions settled
// an id, each would correct its charges.
func (s *idCipher) decrypt(kind, id string) (*idContent, error) {
	const remedy = "; write the id of a %s as the service gave it"
	wrong := func(why string) error { return failf(codes.NotFound, "id: "+why+remedy, kind) }
	if id == "" || len(id) > maxIDLength {
		return nil, invalid("id", "it has %d bytes, and not 1 to %d"+remedy, len(id), maxIDLength, kind)
	}
	encrypted, err := base64.RawURLEncoding.Strict().DecodeString(id)
	if err != nil {
		return nil, wrong("it is malformed")
	}
	text, err := s.aead.Open(nil, nil, encrypted, []byte(kind))
	if err != nil {
		return nil, wrong("it is not of this service, or the tokens of the service have changed")
	}
	content := new(idContent)
	if err := json.Unmarshal(text, content); err != nil {
		return nil, wrong("it is of another version")
	}
	if content.Region != "" && s.region != "" && content.Region != s.region {
		return nil, failf(codes.FailedPrecondition, "id: the %s belongs to region %s, and this is region %s; send the call to region %s", kind, content.Region, s.region, content.Region)
	}
	return content, nil
}

func (s *Service) idContentOf(check *validCheck, grants []admission.Grant) *idContent {
	content := &idContent{Name: randomName()}
	for i := range grants {
		g := &grants[i]
		c := idCharge{Key: g.Charge.Key, Cost: g.Charge.Cost, Holder: g.Charge.Holder, Receipt: g.Charge.Receipt}
		if spec := check.specOf(&g.Charge); spec != nil {
			c.Spec = spec
		} else {
			c.Rule, c.Limit = g.Limit.Rule.Name, g.Limit.Name
			for v, plan := range g.Limit.Variants {
				if plan == g.Charge.Plan {
					c.Variant = v
				}
			}
		}
		content.Charges = append(content.Charges, c)
	}
	return content
}

// specOf returns the spec of a charge, or nil if its limit is one of the policy.
func (check *validCheck) specOf(c *penstock.Charge) *spec {
	if check.callerLimits == nil {
		return nil
	}
	if i := slices.IndexFunc(check.callerLimits.Charges, func(one penstock.Charge) bool { return one.Plan == c.Plan }); i >= 0 {
		return &check.specs[i]
	}
	return nil
}

// grantsOf returns the charges that an id contains, with their limits. If the policy does not
// have a limit any more, there is nothing to correct, and grantsOf leaves the charge out.
func (s *Service) grantsOf(content *idContent) (grants []admission.Grant) {
	rules := s.controller.Rules()
	for i := range content.Charges {
		c := &content.Charges[i]
		g := admission.Grant{Charge: penstock.Charge{Key: c.Key, Cost: c.Cost, Holder: c.Holder, Receipt: c.Receipt}}
		if c.Spec != nil {
			own, err := s.callerLimits.limitOf(*c.Spec, "limits")
			if err != nil {
				continue
			}
			g.Charge.Plan, g.Limit = own.plan, own.limit
		} else {
			if g.Limit = rules.Limit(c.Rule, c.Limit); g.Limit == nil {
				continue
			}
			g.Charge.Plan = g.Limit.Variants[min(c.Variant, len(g.Limit.Variants)-1)] // after a reload there may be fewer
		}
		grants = append(grants, g)
	}
	return grants
}

// ttl returns how long a reservation can be settled, from the time when it was made.
func (content *idContent) ttl() time.Duration { return time.Duration(content.TTL) * time.Millisecond }

func (content *idContent) isExpired(now time.Time) bool { return now.UnixMilli() >= content.Expires }

var errExpired = failf(codes.FailedPrecondition, "the reservation has expired, so its estimate stays charged; reserve for a longer time")
