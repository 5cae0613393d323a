//! What an action was to run, for the words about a start that failed.

use crate::protocol::{End, Program, Start, StartFailure, StartFailureKind as Kind};
use crate::spawn::Failure;

/// Where programs are looked for when the environment does not say.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Longest part of a name or path that is repeated, in bytes.
const MAX_WORDS: usize = 512;

/// Where the program of an action is looked for.
pub(crate) fn search_path(start: &Start) -> &str {
    let path = start.env.iter().rfind(|(name, _)| name == "PATH");
    path.map_or(DEFAULT_PATH, |(_, path)| path)
}

/// Names of an action's program and places.
pub(crate) struct Subject {
    program: String,
    path: String,
    cwd: String,
}

impl Subject {
    pub(crate) fn of(start: &Start) -> Self {
        let program = match &start.program {
            Program::Shell(_) => "/bin/sh",
            Program::Argv(args) => args.first().map_or("", String::as_str),
        };
        Self { program: cut(program), path: cut(search_path(start)), cwd: cut(&start.cwd) }
    }

    /// The end of an action whose program never ran.
    pub(crate) fn not_started(&self, (kind, error): Failure) -> End {
        let Self { program, path, cwd } = self;
        let system = std::io::Error::from_raw_os_error(error.raw_os_error());
        let message = match kind {
            Kind::NotFound if program.is_empty() => "argv[0] is empty: give a program".to_owned(),
            Kind::NotFound if program.contains('/') => format!(
                "{program}: not found: {system}; it, or the interpreter that it names, must be \
                 in the sandbox"
            ),
            Kind::NotFound => format!(
                "{program}: not found in PATH={path}: {system}; install it in the image, or \
                 give its whole path"
            ),
            Kind::PermissionDenied => {
                format!("{program}: may not be executed by the action's user: {system}")
            }
            Kind::BadCwd => {
                format!("{cwd}: no directory that can be entered: {system}; give one that exists")
            }
            Kind::BadExecutable => format!(
                "{program}: no executable of this machine: {system}; a script needs a first \
                 line with #!"
            ),
            Kind::BadArguments => format!(
                "{program}: the arguments and environment are too large or hold a zero byte: \
                 {system}"
            ),
            Kind::NoProcess => format!(
                "{program}: the sandbox cannot make another process: {system}; end some, or \
                 raise its pids"
            ),
            Kind::Cgroup => format!("{program}: could not enter its cgroup: {system}"),
            Kind::Identity => format!("{program}: could not change its user: {system}"),
            Kind::Other => format!("{program}: could not be started: {system}"),
        };
        End::NotStarted(StartFailure { kind, errno: error.raw_os_error(), message })
    }
}

fn cut(text: &str) -> String {
    if text.len() <= MAX_WORDS {
        return text.to_owned();
    }
    let end = (0..=MAX_WORDS).rev().find(|end| text.is_char_boundary(*end));
    format!("{}...", &text[..end.unwrap_or(0)])
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    fn message(argv0: &str, failure: Failure) -> String {
        let start = Start {
            key: "a".into(),
            attempt: 1,
            tag: Vec::new(),
            program: Program::Argv(vec![argv0.into()]),
            env: vec![("PATH".into(), "/opt/bin:/bin".into())],
            cwd: "/nowhere".into(),
            uid: 1,
            gid: 1,
            output_limit: 0,
            stdin: false,
        };
        match Subject::of(&start).not_started(failure) {
            End::NotStarted(failure) => failure.message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_failure_names_what_was_looked_for_and_where() {
        let found = message("no-such-program", (Kind::NotFound, Errno::NOENT));
        assert!(found.starts_with("no-such-program: not found in PATH=/opt/bin:/bin: "), "{found}");
        let found = message("/x/y", (Kind::NotFound, Errno::NOENT));
        assert!(found.starts_with("/x/y: not found: "), "{found}");
        assert!(message("a", (Kind::BadCwd, Errno::NOENT)).starts_with("/nowhere: "));
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let long = "\u{e9}".repeat(MAX_WORDS);
        assert!(message(&long, (Kind::NotFound, Errno::NOENT)).len() < 3 * MAX_WORDS);
    }
}
