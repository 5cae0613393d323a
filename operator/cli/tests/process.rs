//! The program as a process: what a script sees of a refusal.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

/// Exit status, standard output and standard error.
fn run(args: &[&str], input: &[u8]) -> (Option<i32>, String, String) {
    let output = support::process(args, input);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_refusal_is_status_2_and_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = directory.path().join("cluster.json");
    std::fs::write(&cluster, r#"{"pools":[]}"#).unwrap();
    let cluster = cluster.to_str().unwrap();
    let inputs: [&[u8]; 6] = [b"", b"{", b"\xff\xfe\0", b"nul\nl", b"[[[[", b"{\"a\":1e999}"];
    for input in inputs {
        for args in [
            vec!["plan", "arrange", "--input", "-", "--json"],
            vec!["plan", "placement", "--input", "-"],
            vec!["plan", "allocation", "--input", "-"],
            vec![
                "simulate",
                "actions",
                "--cluster",
                cluster,
                "--workload",
                "-",
                "--policy",
                "elastic",
                "--json",
            ],
            vec![
                "simulate",
                "actions",
                "--cluster",
                "-",
                "--workload",
                cluster,
                "--policy",
                "elastic",
            ],
        ] {
            let (status, out, error) = run(&args, input);
            assert_eq!((status, out.as_str()), (Some(2), ""), "{args:?} {input:?}: {error}");
            assert!(error.starts_with("error: -:"), "{error}");
            assert_eq!(error.matches('\n').count(), 1, "{error}");
        }
    }
}

#[test]
fn a_wrong_command_line_is_status_2_and_one_line() {
    for args in [
        vec!["bogus"],
        vec!["plan", "nothing"],
        vec!["plan", "arrange"],
        vec!["simulate", "actions"],
        vec!["paper", "--seed", "x"],
        vec!["paper", "a", "b\nc"],
    ] {
        let (status, out, error) = run(&args, b"");
        assert_eq!((status, out.as_str()), (Some(2), ""), "{args:?}: {error}");
        assert!(error.starts_with("error: command line:$: "), "{error}");
        assert!(error.ends_with(": see --help\n"), "{error}");
        assert_eq!(error.matches('\n').count(), 1, "{error}");
    }
}
