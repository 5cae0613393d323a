#!/usr/bin/env python3
"""Writes JSON schemas for kubeconform from what is on this machine.

  kube-schemas.py OUT SWAGGER CRD...

SWAGGER is Kubernetes' own OpenAPI document, or - for none; each CRD a file with CustomResourceDefinitions. Files
are OUT/<group>/<kind>_<version>.json, and refuse fields that they do not know.
"""

import json
import sys
from pathlib import Path

import yaml

# What the document describes as strings and the API server takes in other forms too.
LOOSE = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["integer", "string"]},
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["number", "string"]},
}


def references(schema):
    if isinstance(schema, dict):
        target = schema.get("$ref")
        if isinstance(target, str):
            yield target.removeprefix("#/definitions/")
        for value in schema.values():
            yield from references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from references(value)


def strict(schema):
    """Closes every object that lists its fields."""
    if isinstance(schema, list):
        return [strict(value) for value in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        # A map from names of fields to schemas, not a schema.
        closed["properties"] = {name: strict(of) for name, of in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            closed.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        closed["type"] = ["integer", "string"]
    elif schema.get("nullable") and "type" in schema:
        closed["type"] = [schema["type"], "null"]
    return closed


def write(out, group, version, kind, schema):
    # Kubeconform takes `v1` for the group of the core kinds.
    path = out / (group or version) / f"{kind.lower()}_{version}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(schema))


def builtin(out, swagger):
    definitions = json.loads(Path(swagger).read_text())["definitions"]
    definitions = {name: strict(schema) for name, schema in definitions.items()} | LOOSE
    for name, schema in definitions.items():
        kinds = schema.get("x-kubernetes-group-version-kind", [])
        # Options of requests belong to every group; they are no manifests.
        if len(kinds) != 1:
            continue
        needed, todo = {}, [name]
        while todo:
            one = todo.pop()
            if one not in needed:
                needed[one] = definitions[one]
                todo += references(definitions[one])
        kind = kinds[0]
        whole = {"$ref": f"#/definitions/{name}", "definitions": needed}
        write(out, kind["group"], kind["version"], kind["kind"], whole)


def custom(out, path):
    for definition in yaml.safe_load_all(Path(path).read_text()):
        if not definition or definition["kind"] != "CustomResourceDefinition":
            continue
        spec = definition["spec"]
        for version in spec["versions"]:
            schema = strict(version["schema"]["openAPIV3Schema"])
            for name in ("apiVersion", "kind"):
                schema["properties"][name] = {"type": "string"}
            schema["properties"]["metadata"] = {"type": "object"}
            write(out, spec["group"], version["name"], spec["names"]["kind"], schema)


def main():
    out = Path(sys.argv[1])
    if sys.argv[2] != "-":
        builtin(out, sys.argv[2])
    for path in sys.argv[3:]:
        custom(out, path)


main()
