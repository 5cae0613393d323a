//! The bytes of an input.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::fault::{Fault, InputError};

/// Largest input, in bytes.
const LARGEST: u64 = 256 << 20;

/// All of a file, or of `stdin` where `file` is `-`.
pub fn read(file: &Path, stdin: &mut impl Read) -> Result<Vec<u8>, InputError> {
    let mut bytes = Vec::new();
    let result = if file == Path::new("-") {
        stdin.take(LARGEST + 1).read_to_end(&mut bytes)
    } else {
        File::open(file).and_then(|opened| opened.take(LARGEST + 1).read_to_end(&mut bytes))
    };
    let length = result.map_err(|error| Fault::new(cannot_read(&error)).in_file(file))?;
    if length as u64 > LARGEST {
        let what = format!("the input is larger than {} MiB: give a smaller one", LARGEST >> 20);
        return Err(Fault::new(what).in_file(file));
    }
    Ok(bytes)
}

fn cannot_read(error: &io::Error) -> String {
    format!("cannot be read: {error}: name a file, or - for standard input")
}
