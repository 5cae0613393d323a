//! Where a model's weights lie in its safetensors files.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Each file's tensors begin at a multiple of this in the image.
const ALIGNMENT: u64 = 512;
/// Most bytes of a file's header: the format's own bound.
const MOST_HEADER: u64 = 100_000_000;
/// Most files of a model.
const MOST_FILES: usize = 10_000;

/// The weights of a model as one image: the data sections of its files, one after the other
/// in the order of their names, each at a multiple of 512 bytes. Tensors lie in it where
/// the headers of the files say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights {
    parts: Vec<Part>,
    bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    path: PathBuf,
    /// Where the data section begins in the file.
    start: u64,
    /// Where it is put in the image.
    at: u64,
    bytes: u64,
}

/// A model whose weights cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A file.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is not what it should be.
    #[error("{}: {what}", path.display())]
    Format {
        /// Which file or directory.
        path: PathBuf,
        /// What is wrong, and what would be right.
        what: &'static str,
    },
}

impl Weights {
    /// Of a safetensors file, or of a directory with `model.safetensors` or
    /// `model.safetensors.index.json`.
    pub fn find(model: &Path) -> Result<Self, WeightsError> {
        let mut weights = Self { parts: Vec::new(), bytes: 0 };
        for path in files(model)? {
            let path = path.canonicalize().map_err(|source| WeightsError::Read { path, source })?;
            let (start, bytes) = data_section(&path)?;
            let at = weights.bytes.next_multiple_of(ALIGNMENT);
            weights.bytes = at + bytes;
            weights.parts.push(Part { path, start, at, bytes });
        }
        Ok(weights)
    }

    /// Where its files truly are.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().map(|part| &*part.path)
    }

    /// Bytes of the image.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills an image, which has [`Self::bytes`].
    pub fn read_into(&self, image: &mut [u8]) -> Result<(), WeightsError> {
        for Part { path, start, at, bytes } in &self.parts {
            let failed = |source| WeightsError::Read { path: path.clone(), source };
            let wrong = || WeightsError::Format { path: path.clone(), what: "it has changed" };
            let range = *at as usize..(at + bytes) as usize;
            let target = image.get_mut(range).ok_or_else(wrong)?;
            let mut file = File::open(path).map_err(failed)?;
            file.seek(SeekFrom::Start(*start)).map_err(failed)?;
            file.read_exact(target).map_err(failed)?;
        }
        Ok(())
    }
}

fn files(model: &Path) -> Result<Vec<PathBuf>, WeightsError> {
    if model.is_file() {
        return Ok(vec![model.to_owned()]);
    }
    let whole = model.join("model.safetensors");
    if whole.is_file() {
        return Ok(vec![whole]);
    }
    let index = model.join("model.safetensors.index.json");
    let text = std::fs::read_to_string(&index)
        .map_err(|source| WeightsError::Read { path: index.clone(), source })?;
    let wrong = |what| WeightsError::Format { path: index.clone(), what };
    let json: Value = serde_json::from_str(&text).map_err(|_| wrong("it is no JSON"))?;
    let map = json.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| wrong("it has no `weight_map`"))?;
    let mut names: Vec<&str> = map.values().filter_map(Value::as_str).collect();
    names.sort_unstable();
    names.dedup();
    let plain = |name: &&str| !name.contains('/') && !name.contains('\0') && **name != *"..";
    if names.is_empty() || names.len() > MOST_FILES || !names.iter().all(plain) {
        return Err(wrong("`weight_map` must name files beside it"));
    }
    Ok(names.into_iter().map(|name| model.join(name)).collect())
}

/// Where a file's data section begins, and its length.
fn data_section(path: &Path) -> Result<(u64, u64), WeightsError> {
    let failed = |source| WeightsError::Read { path: path.to_owned(), source };
    if !path.is_file() {
        let what = "it is no file";
        return Err(WeightsError::Format { path: path.to_owned(), what });
    }
    let mut file = File::open(path).map_err(failed)?;
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(failed)?;
    let header = u64::from_le_bytes(length);
    let total = file.metadata().map_err(failed)?.len();
    let start = header.checked_add(8).filter(|start| header <= MOST_HEADER && *start <= total);
    let what = "it is no safetensors file: its header does not fit";
    let start = start.ok_or(WeightsError::Format { path: path.to_owned(), what })?;
    Ok((start, total - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dir: &Path, name: &str, data: &[u8]) {
        let header = br#"{"w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header, data].concat();
        std::fs::write(dir.join(name), bytes).unwrap();
    }

    #[test]
    fn files_lie_in_the_image_one_after_the_other() {
        let dir = tempfile::tempdir().unwrap();
        file(dir.path(), "b.safetensors", b"BBB");
        file(dir.path(), "a.safetensors", b"AA");
        let index =
            r#"{"weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}}"#;
        std::fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
        let weights = Weights::find(dir.path()).unwrap();
        let mut image = vec![0; weights.bytes() as usize];
        weights.read_into(&mut image).unwrap();
        assert_eq!((&image[..2], &image[512..], image.len()), (&b"AA"[..], &b"BBB"[..], 515));
        file(dir.path(), "model.safetensors", b"one");
        assert_eq!(Weights::find(dir.path()).unwrap().bytes(), 3);
    }

    #[test]
    fn what_is_no_model_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(Weights::find(dir.path()), Err(WeightsError::Read { .. })));
        let path = dir.path().join("model.safetensors");
        std::fs::write(&path, u64::MAX.to_le_bytes()).unwrap();
        assert!(matches!(Weights::find(&path), Err(WeightsError::Format { .. })));
        std::fs::remove_file(&path).unwrap();
        let index = dir.path().join("model.safetensors.index.json");
        std::fs::write(&index, r#"{"weight_map": {"x": "../../etc/passwd"}}"#).unwrap();
        assert!(Weights::find(dir.path()).unwrap_err().to_string().contains("beside"));
    }
}
