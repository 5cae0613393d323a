//! The reader against `serde_json`, and whatever the bytes.

use std::path::Path;

use proptest::prelude::*;

use super::*;

fn from_serde(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(flag) => Value::Flag(*flag),
        serde_json::Value::Number(number) => Value::Number(number.as_f64().unwrap()),
        serde_json::Value::String(text) => Value::Text(text.clone()),
        serde_json::Value::Array(items) => Value::List(items.iter().map(from_serde).collect()),
        serde_json::Value::Object(fields) => Value::Object(
            fields.iter().map(|(name, value)| (name.clone(), from_serde(value))).collect(),
        ),
    }
}

/// Equal, but for the last bits of long numbers, which `serde_json` rounds twice.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => (a - b).abs() <= 1e-14 * a.abs().max(b.abs()),
        (Value::List(a), Value::List(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((m, a), (n, b))| m == n && same(a, b))
        }
        (a, b) => a == b,
    }
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_filter("finite", |f| f.is_finite()).prop_map(Into::into),
        any::<String>().prop_map(Into::into),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            prop::collection::vec((any::<String>(), inner), 0..6)
                .prop_map(|fields| serde_json::Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Pieces that make the likely mistakes.
fn near_json() -> impl Strategy<Value = String> {
    let pieces = vec![
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"a\"",
        "\"b\"",
        "\"\\u00e9\"",
        "\"\\ud83d\\ude00\"",
        "\"\\ud83d\"",
        "\"\\udc00\"",
        "\"\\x\"",
        "\"",
        "\\",
        "1",
        "0",
        "-",
        "-0",
        "01",
        "1.",
        ".5",
        "1e5",
        "1e999",
        "1E+",
        "2.5e-3",
        "true",
        "null",
        "nul",
        "NaN",
        "Infinity",
        " ",
        "\n",
        "\t",
        "\u{feff}",
        "é",
        "\u{1}",
    ];
    prop::collection::vec(prop::sample::select(pieces), 0..14).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn what_serde_json_writes_is_read_the_same(value in json()) {
        for text in [serde_json::to_string(&value).unwrap(), serde_json::to_string_pretty(&value).unwrap()] {
            let got = parse(text.as_bytes()).unwrap();
            prop_assert!(same(&got, &from_serde(&value)), "{text}: {got:?}");
        }
    }

    #[test]
    fn what_serde_json_refuses_is_refused(text in near_json()) {
        agree(text.as_bytes())?;
    }

    #[test]
    fn a_changed_byte_is_judged_the_same(value in json(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = serde_json::to_vec(&value).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        agree(&bytes)?;
    }

    #[test]
    fn any_bytes_end_in_a_value_or_one_line(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        agree(&bytes)?;
    }

    #[test]
    fn numbers_are_the_closest(number in any::<f64>().prop_filter("finite", |f| f.is_finite())) {
        let text = format!("{number:?}");
        prop_assert_eq!(parse(text.as_bytes()).unwrap(), Value::Number(number));
    }
}

fn agree(bytes: &[u8]) -> Result<(), TestCaseError> {
    let theirs: Result<serde_json::Value, _> = serde_json::from_slice(bytes);
    match (parse(bytes), theirs) {
        (Ok(ours), Ok(theirs)) => prop_assert!(same(&ours, &from_serde(&theirs))),
        (Err(fault), theirs) => {
            let line = fault.in_file(Path::new("in.json")).to_string();
            prop_assert!(!line.chars().any(char::is_control), "{line:?}");
            // The last of two equal names is what they keep.
            prop_assert!(theirs.is_err() || line.contains("given twice"), "{line}");
        }
        (Ok(ours), Err(theirs)) => prop_assert!(false, "{ours:?}, but {theirs}"),
    }
    Ok(())
}

fn refusal(text: &str) -> String {
    parse(text.as_bytes()).unwrap_err().in_file(Path::new("f")).to_string()
}

#[test]
fn refusals_name_the_place() {
    assert_eq!(refusal(r#"{"a":[1,{"b":1,"b":2}]}"#), "f:$.a[1].b: given twice: give it once");
    assert_eq!(
        refusal("{\"a\":\n [1, 1e999]}"),
        "f:$.a[1]: \"1e999\" is beyond 64-bit numbers: use a smaller one"
    );
    assert_eq!(
        refusal("{\"a\":\n NaN}"),
        "f:$.a: line 2, column 2: expected a finite number, got \"N\""
    );
    assert_eq!(refusal(" \n"), "f:$: the input is empty: give one JSON object");
    assert_eq!(
        refusal("{} {}"),
        "f:$: line 1, column 4: expected the end, after one JSON value, got \"{\""
    );
    assert_eq!(
        refusal("{\"a\\n b\": }"),
        "f:$[\"a\\n b\"]: line 1, column 11: expected a JSON value, got \"}\""
    );
    assert!(
        refusal(&"[".repeat(1_000_000)).ends_with("nested more than 64 levels deep: use fewer")
    );
    let fault = parse(b"{\"a\": \"\xff\"}").unwrap_err();
    let line = fault.on_line(Path::new("w.jsonl"), 7).to_string();
    assert_eq!(line, "w.jsonl:7: $: line 1, column 8: not UTF-8: encode the text as UTF-8");
}
