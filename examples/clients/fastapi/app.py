"""Limits the requests of a FastAPI server: PENSTOCK_URL=http://localhost:8090 PENSTOCK_TOKEN=... uvicorn app:app"""
import logging, os, urllib.parse
import httpx
from fastapi import FastAPI
from fastapi.responses import JSONResponse

app = FastAPI()
penstock = httpx.AsyncClient(base_url=os.environ["PENSTOCK_URL"], headers={"Authorization": "Bearer " + os.environ["PENSTOCK_TOKEN"]}, timeout=1)

@app.middleware("http")
async def limit(request, call_next):
    """Responds to a denied request, and to one that Penstock cannot read. If there is no decision for another reason, the request passes,
    with a line in the log."""
    user = request.headers.get("X-User", "")  # in your server: the user that the authentication has found
    path = request.scope.get("raw_path") or urllib.parse.quote(request.scope["path"]).encode()  # as the client sent it, percent-encoded
    attributes = {"method": request.method, "path": path.decode("latin-1"), "descriptors": {"user": user}}
    if request.client:  # uvicorn at a Unix socket knows no address
        attributes["address"] = request.client.host
    headers = {}
    try:
        check = await penstock.post("/v1/check?status=429", json={"attributes": attributes})
        decision = check.json()
        if check.status_code in (400, 409):  # if such a request passed, clients could choose to have no limits
            logging.error("the request is rejected: %s", decision["detail"])
            return JSONResponse({"error": "malformed"}, 400)
        if "allowed" not in decision:
            raise ValueError(decision["detail"])
        headers = {name: check.headers[name] for name in ("RateLimit", "RateLimit-Policy", "Retry-After") if name in check.headers}
        if not decision["allowed"]:
            return JSONResponse({"error": decision["outcome"]}, check.status_code, headers)
    except (httpx.HTTPError, ValueError) as error:
        logging.error("no decision, so the request passes: %r", error)
    response = await call_next(request)
    response.headers.update(headers)
    return response

@app.get("/hello")
def hello():
    return "hello"
