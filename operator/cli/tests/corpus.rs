//! Every input format, wrong in every place in every known way: a refusal with its place, or an
//! answer where what was put there happens to be right.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

use clap::Parser as _;
use rollwright_cli::{Cli, Failure, run};
use serde_json::{Map, Value};

const ARRANGE: &str =
    r#"{"tasks":[{"units":[1,2],"durations":[8.0,4.5]},{"units":[1],"durations":[5]}],"free":4}"#;
const CHUNKS: &str = r#"{"tasks":[{"units":[1,2],"durations":[8.0,4.5]}],"chunks":{"1":1,"2":1}}"#;
const PLACEMENT: &str =
    r#"{"lengths":[400,90],"workers":[{"token_time_s":0.02}],"interference":[1.0,1.05]}"#;
const ALLOCATION: &str = r#"{"lengths":[400,90],"gpus":4,"max_workers":2,"degrees":{"1":0.02,"2":0.012},"interference":[1.0,1.05]}"#;
const CLUSTER: &str = r#"{"pools":[{"name":"cpu","kind":"cpu","nodes":2,"cores":8,"numa":2,"memory_gib":24},{"name":"rm","kind":"gpu","nodes":1,"gpus":8},{"name":"search","kind":"quota","concurrency":4,"per_period":60,"period_s":60}],"services":[{"name":"judge","pool":"rm","degrees":[4,8],"restore_s":1.2}],"depth":2}"#;
const WORKLOAD: &str = r#"{"trajectory":"t1","arrival_s":0,"memory_gib":4,"phases":[{"generate_s":12.1},{"action":{"pool":"cpu","kind":"tests","units":[0.5,1,2],"duration_s":12,"serial":0.05,"malleable":false}},{"action":{"pool":"rm","service":"judge","units":[4,8],"duration_s":9,"serial":0.1}},{"action":{"pool":"search","duration_s":1.5}}]}"#;

/// What an input is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Arrange,
    Chunks,
    Placement,
    Allocation,
    Cluster,
    Workload,
}

impl Format {
    const ALL: [Self; 6] = [
        Self::Arrange,
        Self::Chunks,
        Self::Placement,
        Self::Allocation,
        Self::Cluster,
        Self::Workload,
    ];

    fn example(self) -> &'static str {
        match self {
            Self::Arrange => ARRANGE,
            Self::Chunks => CHUNKS,
            Self::Placement => PLACEMENT,
            Self::Allocation => ALLOCATION,
            Self::Cluster => CLUSTER,
            Self::Workload => WORKLOAD,
        }
    }

    /// The answer, or the place and the sentence of the refusal. The input comes by standard
    /// input; what else is needed is right.
    fn read(self, input: &[u8]) -> Result<String, String> {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (cluster, workload) = match self {
            Self::Cluster => ("-".to_owned(), file("work.jsonl", WORKLOAD)),
            _ => (file("cluster.json", CLUSTER), "-".to_owned()),
        };
        let plan = |what| vec!["plan", what, "--input", "-", "--json"];
        let arguments = match self {
            Self::Arrange | Self::Chunks => plan("arrange"),
            Self::Placement => plan("placement"),
            Self::Allocation => plan("allocation"),
            Self::Cluster | Self::Workload => {
                let [simulate, actions] = ["simulate", "actions"];
                let files = ["--cluster", &cluster, "--workload", &workload];
                [&[simulate, actions][..], &files, &["--policy", "elastic", "--json"]].concat()
            }
        };
        let cli = Cli::try_parse_from(["kubectl-rollwright"].into_iter().chain(arguments)).unwrap();
        let mut out = Vec::new();
        match run(&cli, &mut &input[..], &mut out) {
            Ok(()) => Ok(String::from_utf8(out).unwrap()),
            Err(Failure::Input(error)) => {
                assert!(out.is_empty(), "{self:?}: nothing on standard output");
                Err(error.to_string())
            }
            Err(failure @ Failure::Output { .. }) => panic!("{failure}"),
        }
    }

    /// Fails unless it is refused in one line, with its place.
    fn refuses(self, input: &[u8]) {
        let shown = String::from_utf8_lossy(&input[..input.len().min(400)]).into_owned();
        let line = self.read(input).expect_err(&shown);
        self.is_refusal(&line, &shown);
    }

    /// Fails unless it is one answer, or refused.
    fn ends(self, input: &str) {
        match self.read(input.as_bytes()) {
            Ok(answer) => {
                assert!(serde_json::from_str::<Map<String, Value>>(&answer).is_ok(), "{answer}");
            }
            Err(line) => self.is_refusal(&line, input),
        }
    }

    fn is_refusal(self, line: &str, input: &str) {
        assert!(!line.chars().any(char::is_control), "{self:?} {input}\n{line:?}");
        assert!(line.len() < 1000, "{self:?} {input}\n{line}");
        // A fault of a workload may lie in what the cluster lacks for it, and the reverse.
        let (_, rest) = line.split_once(':').unwrap();
        let numbered = self == Self::Workload || self == Self::Cluster;
        let (place, sentence) = rest.split_once(": ").unwrap_or_else(|| panic!("{line}"));
        let is_line = place.split(':').next().unwrap().bytes().all(|byte| byte.is_ascii_digit());
        assert!(place.starts_with('$') || (numbered && is_line), "{self:?} {input}\n{line}");
        assert!(sentence.split_whitespace().count() >= 2, "{self:?} {input}\n{line}");
    }
}

/// The place of every value, the whole included.
fn places(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                places(item, &format!("{at}/{index}"), all);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                places(field, &format!("{at}/{name}"), all);
            }
        }
        _ => {}
    }
}

/// Every input with one of its values replaced by `text`, whatever that is.
fn replaced(example: &str, text: &str) -> Vec<String> {
    let value: Value = serde_json::from_str(example).unwrap();
    let mut all = Vec::new();
    places(&value, "", &mut all);
    let replace = |place: &String| {
        let mut value = value.clone();
        *value.pointer_mut(place).unwrap() = Value::from("@");
        value.to_string().replace("\"@\"", text)
    };
    all.iter().map(replace).collect()
}

/// Every input with one of its objects changed.
fn changed(example: &str, change: impl Fn(&mut Map<String, Value>, &str)) -> Vec<String> {
    let value: Value = serde_json::from_str(example).unwrap();
    let mut all = Vec::new();
    places(&value, "", &mut all);
    let mut inputs = Vec::new();
    for place in all {
        let names: Vec<String> = match value.pointer(&place).unwrap() {
            Value::Object(fields) => fields.keys().cloned().collect(),
            _ => Vec::new(),
        };
        for name in names {
            let mut value = value.clone();
            change(value.pointer_mut(&place).unwrap().as_object_mut().unwrap(), &name);
            inputs.push(value.to_string().replace("\"@\"", &format!("{name:?}")));
        }
    }
    inputs
}

#[test]
fn the_examples_are_right() {
    for format in Format::ALL {
        let answer = format.read(format.example().as_bytes()).unwrap();
        assert!(serde_json::from_str::<Map<String, Value>>(&answer).is_ok(), "{answer}");
    }
}

#[test]
fn what_is_cut_off_anywhere_is_refused() {
    for format in Format::ALL {
        for end in 0..format.example().len() {
            format.refuses(&format.example().as_bytes()[..end]);
        }
    }
}

#[test]
fn what_is_no_number_or_too_large_for_one_is_refused_everywhere() {
    for format in Format::ALL {
        for text in ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "0x10", "1_000", "+1", "01"]
        {
            for input in replaced(format.example(), text) {
                format.refuses(input.as_bytes());
            }
        }
    }
}

#[test]
fn another_type_is_refused_everywhere() {
    for format in Format::ALL {
        // No field may be null; a text for a number, and so on.
        for input in replaced(format.example(), "null") {
            format.refuses(input.as_bytes());
        }
        for text in ["true", "\"\"", "\"x\"", "[]", "{}", "[[]]", "[null]", "{\"\":0}"] {
            for input in replaced(format.example(), text) {
                format.ends(&input);
            }
        }
    }
}

#[test]
fn extreme_numbers_end_everywhere() {
    for format in Format::ALL {
        for text in ["-1", "-0.0", "0", "0.5", "1e-320", "1e308", "4294967296", "9007199254740993"]
        {
            for input in replaced(format.example(), text) {
                format.ends(&input);
            }
        }
    }
}

#[test]
fn fields_twice_and_unknown_fields_are_refused_everywhere() {
    for format in Format::ALL {
        let twice = changed(format.example(), |fields, name| {
            let value = fields[name].clone();
            fields.insert("@".to_owned(), value);
        });
        // The names of degrees and chunks are free, those of fields are not.
        let unknown = changed(format.example(), |fields, name| {
            let value = fields.remove(name).unwrap();
            fields.insert(format!("{name}x"), value);
        });
        assert!(!twice.is_empty());
        for input in twice.iter().chain(&unknown) {
            format.refuses(input.as_bytes());
        }
        for input in changed(format.example(), |fields, name| drop(fields.remove(name))) {
            format.ends(&input);
        }
    }
}

#[test]
fn names_used_twice_are_refused() {
    for (format, name) in [(Format::Cluster, "pools"), (Format::Cluster, "services")] {
        let mut value: Value = serde_json::from_str(format.example()).unwrap();
        let items = value[name].as_array_mut().unwrap();
        items.push(items[0].clone());
        format.refuses(value.to_string().as_bytes());
    }
    Format::Workload.refuses(format!("{WORKLOAD}\n{WORKLOAD}\n").as_bytes());
}

#[test]
fn deep_nesting_is_refused_everywhere() {
    let deep = [("[", "]"), ("{\"a\":", "}")].map(|(open, close)| {
        [open.repeat(100_000), "0".to_owned(), close.repeat(100_000)].concat()
    });
    for format in Format::ALL {
        for text in &deep {
            for input in replaced(format.example(), text) {
                format.refuses(input.as_bytes());
            }
            // Never closed.
            format.refuses(&text.as_bytes()[..text.len() / 2]);
        }
    }
}

#[test]
fn bytes_that_are_no_text_are_refused_everywhere() {
    for format in Format::ALL {
        for bytes in [&b"\xff"[..], b"\xc3", b"\xed\xa0\x80", b"\0"] {
            for place in 0..=format.example().len() {
                let mut input = format.example().as_bytes().to_vec();
                input.splice(place..place, bytes.iter().copied());
                format.refuses(&input);
            }
        }
    }
}
