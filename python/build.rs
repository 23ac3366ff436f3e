//! Lists the studies and machines of the project, so that the package has them all.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut text = String::new();
    for folder in ["studies", "machines"] {
        let folder_path = root.join(folder).canonicalize()?;
        println!("cargo:rerun-if-changed={}", folder_path.display());
        let mut files: Vec<PathBuf> = fs::read_dir(&folder_path)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()?;
        files.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
        files.sort();
        text += &format!("const {}: &[(&str, &str)] = &[\n", folder.to_uppercase());
        for path in files {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            text += &format!("    ({name:?}, include_str!({:?})),\n", path.display().to_string());
        }
        text += "];\n";
    }
    fs::write(Path::new(&env::var("OUT_DIR").unwrap_or_default()).join("shipped.rs"), text)
}
