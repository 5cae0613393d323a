//! The command line.

use std::path::PathBuf;

/// How to call it.
pub const USAGE: &str = "\
The helper that is process 1 of a Rollwright sandbox.

Usage: rollwright-init [--socket PATH] [--workdir PATH --uid N --gid N]

  --socket PATH   where the agent connects [/.rollwright/run/init.sock]; its
                  directory must be closed to others
  --workdir PATH  directory to make for the user before anything runs
  --uid N         owner of the working directory [1000]
  --gid N         its group [1000]
  --version       print the version
  --help          print this";

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Print the usage.
    Help,
    /// Print the version.
    Version,
    /// Serve.
    Serve(Options),
}

/// How to serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Socket to listen on.
    pub socket: PathBuf,
    /// Directory to make, if any.
    pub workdir: Option<PathBuf>,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// Understands the arguments after the program's name.
///
/// # Errors
/// One sentence saying what is wrong.
pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Request, String> {
    let mut options = Options {
        socket: PathBuf::from("/.rollwright/run/init.sock"),
        workdir: None,
        uid: 1000,
        gid: 1000,
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--help" | "-h" => return Ok(Request::Help),
            "--version" | "-V" => return Ok(Request::Version),
            "--socket" => options.socket = value()?.into(),
            "--workdir" => options.workdir = Some(value()?.into()),
            "--uid" => options.uid = number(&arg, &value()?)?,
            "--gid" => options.gid = number(&arg, &value()?)?,
            _ => return Err(format!("unknown argument {arg:?}; see --help")),
        }
    }
    Ok(Request::Serve(options))
}

fn number(name: &str, value: &str) -> Result<u32, String> {
    match value.parse() {
        Ok(0) | Err(_) => Err(format!("{name} needs a number above 0, not {value:?}")),
        Ok(number) => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Request, String> {
        parse(args.iter().map(|arg| (*arg).to_owned()))
    }

    #[test]
    fn arguments_are_understood_or_refused() {
        let Ok(Request::Serve(options)) = parsed(&["--socket", "/s", "--uid", "7"]) else {
            panic!("expected to serve");
        };
        assert_eq!((options.socket, options.uid, options.gid), ("/s".into(), 7, 1000));
        assert_eq!(parsed(&["--help"]), Ok(Request::Help));
        assert!(parsed(&["--uid", "0"]).unwrap_err().contains("above 0"));
        assert!(parsed(&["--socket"]).unwrap_err().contains("needs a value"));
        assert!(parsed(&["x"]).unwrap_err().contains("unknown argument"));
    }
}
