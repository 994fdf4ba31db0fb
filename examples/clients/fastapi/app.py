"""Limits the requests of a FastAPI server: PENSTOCK_URL=http://localhost:8090 PENSTOCK_TOKEN=... uvicorn app:app"""
import logging, os
import httpx
from fastapi import FastAPI
from fastapi.responses import JSONResponse

app = FastAPI()
penstock = httpx.AsyncClient(base_url=os.environ["PENSTOCK_URL"], headers={"Authorization": "Bearer " + os.environ["PENSTOCK_TOKEN"]}, timeout=1)

@app.middleware("http")
async def limit(request, call_next):
    """Responds to a denied request. A request without a decision passes, with a line in the log."""
    user = request.headers.get("X-User", "")  # in your server: the user that the authentication has found
    attributes = {"method": request.method, "path": request.url.path, "address": request.client.host, "descriptors": {"user": user}}
    headers = {}
    try:
        check = await penstock.post("/v1/check?status=429", json={"attributes": attributes})
        decision = check.json()
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
