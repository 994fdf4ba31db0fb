package main

// architecture shows who sends requests to instances, and what the instances share.
func architecture() string {
	d := &drawing{width: 860, height: 350, title: "How Penstock works",
		about: "Clients, proxies and programs send requests to several instances. Each instance runs one script per check in a shared Redis, and forwards allowed requests to your API."}
	d.text(24, 34, "h", "Any number of instances share one set of counters")

	d.box(24, 60, 200, 62, "box", "HTTP clients", "browsers, apps, partners")
	d.box(24, 142, 200, 62, "box", "Your proxy", "nginx, Envoy, Traefik, Caddy")
	d.box(24, 224, 200, 62, "box", "Other programs", "JSON, gRPC, Redis clients")

	d.box(334, 60, 200, 62, "own", "penstock serve", "as a reverse proxy")
	d.box(334, 142, 200, 62, "own", "penstock serve", "as a service")
	d.box(334, 224, 200, 62, "own", "Your Go program", "with the library")

	d.box(656, 60, 180, 62, "box", "Your API", "gets allowed requests")
	d.box(656, 164, 180, 100, "store", "Redis or Valkey", "one server,", "Sentinel or Cluster")

	d.arrow(224, 91, 330, 91)
	d.text(277, 83, "mid s muted", "requests")
	d.arrow(224, 173, 330, 173)
	d.text(277, 165, "mid s muted", "allowed?")
	d.arrow(224, 255, 330, 190)
	d.arrow(534, 83, 652, 83)
	d.text(593, 75, "mid s muted", "allowed")
	d.arrow(534, 104, 652, 178)
	d.arrow(534, 173, 652, 203)
	d.arrow(534, 255, 652, 232)
	d.text(24, 320, "s", "Each check is one atomic script: “may user:42 spend 1 of 100/s and 1 of 10,000/day?” Denied requests get 429 and Retry-After.")
	d.text(24, 338, "s muted", "While Redis does not answer, each limit counts locally, refuses or allows. You choose which.")
	return d.String()
}
