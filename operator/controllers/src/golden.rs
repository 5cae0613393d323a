//! Built objects against files: `UPDATE_GOLDEN=1 cargo test -p rollwright-controllers` writes
//! them anew. A file that is missing fails.

use std::path::PathBuf;

use serde::Serialize;

/// Compares `built` as YAML with `src/MODULE/golden/NAME.yaml`.
pub(crate) fn check<T: Serialize>(module: &str, name: &str, built: &T) {
    let found = serde_yaml::to_string(built).unwrap();
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("src")
        .join(module)
        .join("golden")
        .join(format!("{name}.yaml"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == found, "{} differs from what is built:\n{found}", path.display());
}
