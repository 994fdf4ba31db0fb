# Hooks for schemathesis: see scripts/run-openapi.
import schemathesis


def without_repeats(value):
    """Removes headers whose names differ only in case: the API refuses them, and no schema says so."""
    if isinstance(value, dict):
        headers = value.get("headers")
        if isinstance(headers, dict):
            value["headers"] = {name.lower(): text for name, text in headers.items()}
        for inner in value.values():
            without_repeats(inner)
    elif isinstance(value, list):
        for inner in value:
            without_repeats(inner)


@schemathesis.hook
def before_call(context, case, kwargs):
    without_repeats(case.body)
