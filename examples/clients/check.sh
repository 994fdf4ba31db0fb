#!/bin/sh
# Gets a decision from Penstock: check.sh http://localhost:8090 TOKEN user:42. The exit status is 0 if the request may go
# ahead, 1 if it is denied, and 2 if there is no decision.
response_headers=$(mktemp) && trap 'rm -f "$response_headers"' EXIT
id=$(od -An -N8 -tx1 /dev/urandom | tr -d ' ') # with this id, the second try is free if the first was charged
for _ in 1 2; do
	status=$(curl -s -m 1 -D "$response_headers" -o /dev/null -w '%{http_code}' "$1/v1/check?status=429" \
		-H "Authorization: Bearer $2" -H 'Content-Type: application/json' -H "Idempotency-Key: $id" -d '{"rule": "api", "key": "'"$3"'"}')
	after=$(sed -n 's/^[Rr]etry-[Aa]fter: \([0-9]*\).*/\1/p' "$response_headers")
	left=$(sed -n 's/^[Rr]ate[Ll]imit: [^;]*;r=\([0-9]*\).*/\1/p' "$response_headers")
	case $status in
	200) echo "allowed, $left left" && exit 0 ;;
	429) [ -n "$left" ] && echo "denied, retry after $after s" && exit 1 ;; # without RateLimit: too many calls of this program
	503 | 000) ;;
	*) echo "status $status" >&2 && exit 3 ;;
	esac
	sleep "$([ "${after:-1}" -gt 1 ] && echo 1 || echo "${after:-0.1}")"
done
echo "undecided: this script goes on" && exit 2
