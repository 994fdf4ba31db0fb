#!/bin/sh
# Gets a decision from Penstock: check.sh http://localhost:8090 TOKEN user:42. The exit status is 0 if the request may go
# ahead, 1 if it is denied, 2 if there is no decision, and 3 if Penstock rejects the call itself.
response_headers=$(mktemp) && trap 'rm -f "$response_headers"' EXIT
id=$(od -An -N8 -tx1 /dev/urandom | tr -d ' ') # with this id, the second try is free if the first was charged
for _ in 1 2; do
	# With status=429, a denial has status 429, and its header has RateLimit and Retry-After.
	status=$(curl -s -m 1 -D "$response_headers" -o /dev/null -w '%{http_code}' "$1/v1/check?status=429" \
		-H "Authorization: Bearer $2" -H 'Content-Type: application/json' -H "Idempotency-Key: $id" -d '{"rule": "api", "key": "'"$3"'"}')
	after=$(sed -n 's/^[Rr]etry-[Aa]fter: \([0-9]*\).*/\1/p' "$response_headers")
	left=$(sed -n 's/^[Rr]ate[Ll]imit: [^;]*;r=\([0-9]*\).*/\1/p' "$response_headers")
	case $status in
	200) echo "allowed, $left left" && exit 0 ;;
	429) [ -n "$left" ] && echo "denied, retry after $after s" && exit 1 ;; # else a proxy limits the calls of this program: try again
	503 | 000) ;;
	*) echo "status $status" >&2 && exit 3 ;;
	esac
	pause=${after:-0.1} # seconds; at most 1
	[ "${after:-0}" -gt 1 ] && pause=1
	sleep "$pause"
done
echo "undecided: Penstock gave no decision" && exit 2
