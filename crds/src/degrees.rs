//! How many GPUs a worker or an engine may have.

use std::borrow::Cow;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// One or more of 1, 2, 4 and 8 GPUs, ascending. [`crate::rules`] checks that they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Degrees(Vec<u32>);

impl Deref for Degrees {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.0
    }
}

impl<'a> IntoIterator for &'a Degrees {
    type Item = &'a u32;
    type IntoIter = std::slice::Iter<'a, u32>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl JsonSchema for Degrees {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Degrees".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "array",
            "items": generator.subschema_for::<u32>(),
            "minItems": 1,
            "maxItems": 4,
            "x-kubernetes-validations": [
                {
                    "rule": "self.all(d, d in [1, 2, 4, 8])",
                    "message": "each of degrees is 1, 2, 4 or 8",
                },
                {
                    "rule": "self.isSorted() && self.all(a, self.exists_one(b, a == b))",
                    "message": "degrees must ascend, for example [1, 2, 4]",
                },
            ],
        })
    }
}
