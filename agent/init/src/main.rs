//! The helper that is process 1 of a sandbox; see the library.

use std::process::ExitCode;

use rollwright_init::options::{self, Request, USAGE};
use rollwright_init::server;

fn main() -> ExitCode {
    let served = match options::parse(std::env::args().skip(1)) {
        Ok(Request::Help) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Ok(Request::Version) => {
            println!("rollwright-init {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        Ok(Request::Serve(options)) => server::serve(&options).map_err(|error| error.to_string()),
        Err(message) => Err(message),
    };
    let Err(message) = served else { return ExitCode::SUCCESS };
    eprintln!("rollwright-init: {message}");
    ExitCode::FAILURE
}
