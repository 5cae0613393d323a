//! What ends a command early.

use std::fmt;
use std::io;
use std::process::ExitCode;

use crate::input::InputError;

/// Why there is no answer.
#[derive(Debug)]
pub enum Failure {
    /// The input was refused: exit status 2.
    Input(InputError),
    /// The answer could not be written: exit status 1.
    Output {
        /// Where to.
        to: String,
        /// Why.
        error: io::Error,
    },
}

impl Failure {
    /// The exit status of the process.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Input(_) => ExitCode::from(2),
            Self::Output { .. } => ExitCode::FAILURE,
        }
    }
}

impl From<InputError> for Failure {
    fn from(error: InputError) -> Self {
        Self::Input(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(error) => error.fmt(f),
            Self::Output { to, error } => write!(f, "{to}: {error}"),
        }
    }
}

impl std::error::Error for Failure {}
