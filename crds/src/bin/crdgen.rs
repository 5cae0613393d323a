//! `crdgen [--check] DIR`: writes the custom resource definitions to DIR, or, with
//! `--check`, only reads and names the files that are stale.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--check", dir] => rollwright_crds::definitions::check(Path::new(dir)),
        [dir] if !dir.starts_with('-') => rollwright_crds::definitions::write(Path::new(dir)),
        _ => {
            eprintln!("usage: crdgen [--check] DIR");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
