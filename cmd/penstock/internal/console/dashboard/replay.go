package dashboard

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
)

// A replayedLimit is what the JSON of penstock replay has about a limit.
type replayedLimit struct {
	Rule     string `json:"rule"`
	Limit    string `json:"limit"`
	Requests uint64 `json:"requests"`
	Denied   uint64 `json:"denied"`
	Clients  uint64 `json:"denied_identities"`
}

// A replayRow compares what a replay said about a limit with what the limit has done.
type replayRow struct {
	replayedLimit
	Live counts // of this instance
}

func (r replayRow) ReplayedShare() float64 { return share(r.Denied, r.Requests) }
func (r replayRow) Total() uint64          { return r.Live.Allowed + r.Live.Denied }

const maxReplay = 4 << 20 // bytes of a report

// receiveReplay shows the page of rules with the report of penstock replay that a form has. The
// report is not kept.
func (h *Handler) receiveReplay(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxReplay)
	v, err := h.API.ViewerOf(r)
	var body any
	if err == nil {
		body, err = h.rules(r.Context(), v, url.Values{})
	}
	if err != nil {
		h.fail(w, r, adminapi.StatusOf(err), err)
		return
	}
	status, rules := http.StatusOK, body.(rulesBody)
	if rules.Replay, err = h.compareReplay(r); err != nil {
		status = http.StatusBadRequest
	}
	i := slices.IndexFunc(pages, func(p page) bool { return p.path == "rules" })
	h.write(w, status, "rules", view{Page: pages[i], Viewer: v, Body: rules, Problem: text(err)}, r)
}

func (h *Handler) compareReplay(r *http.Request) ([]replayRow, error) {
	var report struct {
		Policy struct {
			Limits []replayedLimit `json:"limits"`
		} `json:"policy"`
	}
	file, _, err := r.FormFile("report")
	if err == nil {
		defer file.Close()
		err = json.NewDecoder(file).Decode(&report)
	}
	limits := report.Policy.Limits
	if err != nil || len(limits) == 0 {
		return nil, errors.New("this file, of at most 4 MB, is no report of a replay; write it by: penstock replay LOG --config rules.yaml -o json > replay.json")
	}
	rows := make([]replayRow, 0, len(limits))
	index := make(map[activity.Series]int)
	for _, l := range limits[:min(len(limits), maxRules)] {
		index[activity.Series{Rule: l.Rule, Limit: l.Limit}] = len(rows)
		rows = append(rows, replayRow{replayedLimit: l})
	}
	for _, line := range h.API.Recorder.History().ByMinute(activity.Minutes, nil) {
		i, ok := index[activity.Series{Rule: line.Rule, Limit: line.Limit}]
		if !ok {
			continue
		}
		outcome := strings.TrimPrefix(line.Name, "shadow_") // a shadow is compared like a limit
		for _, n := range line.Counts {
			rows[i].Live.add(outcome, uint64(n))
		}
	}
	return rows, nil
}
