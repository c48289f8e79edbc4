"""Checks DNSEndpoints of external-dns. No package registry was found to offer its types.

The schema is written from external-dns's documentation of the type (docs/sources/crd.md), and allows only what
deploy/global may use.
"""

import jsonschema

from tests.support.kustomize import Object

_TEXT = {"type": "string", "minLength": 1}
_ENDPOINT = {
    "type": "object",
    "additionalProperties": False,
    "required": ["dnsName", "recordType", "targets", "recordTTL", "setIdentifier", "providerSpecific"],
    "properties": {
        "dnsName": {"type": "string", "format": "hostname"},
        "recordType": {"enum": ["A", "AAAA", "CNAME"]},
        "targets": {"type": "array", "minItems": 1, "items": _TEXT},
        "recordTTL": {"type": "integer", "minimum": 1},
        "setIdentifier": _TEXT,
        "providerSpecific": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name", "value"],
                "properties": {"name": {"enum": ["aws/region", "aws/health-check-id"]}, "value": _TEXT},
            },
        },
    },
}
_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "externaldns.k8s.io/v1alpha1"},
        "kind": {"const": "DNSEndpoint"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["endpoints"],
            "properties": {"endpoints": {"type": "array", "minItems": 1, "items": _ENDPOINT}},
        },
    },
}


def faults_of_dns_endpoint(found: Object) -> list[str]:
    """Return what is wrong with a DNSEndpoint; [] if nothing is."""
    return [error.message for error in jsonschema.Draft202012Validator(_SCHEMA).iter_errors(found)]
