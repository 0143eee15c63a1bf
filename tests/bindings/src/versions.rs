//! The libraries and the versions of their symbols.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// A symbol's place: the library by its soname, and the version that a program is linked to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub library: String,
    pub version: String,
}

/// Reads the symbols that the libraries define, with their default versions.
pub fn read(libraries: &[String]) -> Result<BTreeMap<String, Version>, String> {
    let mut all = BTreeMap::new();
    for library in libraries {
        let name = Path::new(library).file_name().and_then(|n| n.to_str());
        let name = name.ok_or_else(|| format!("{library}: not the name of a library"))?;
        let out = Command::new("readelf").args(["-W", "--dyn-syms", library]).output();
        let out = out.map_err(|e| format!("readelf: {e}"))?;
        if !out.status.success() {
            return Err(format!("readelf {library}: {}", String::from_utf8_lossy(&out.stderr)));
        }
        for word in String::from_utf8_lossy(&out.stdout).split_whitespace() {
            // "name@@version" is what a program is linked to, "name@version" an older one.
            if let Some((symbol, version)) = word.split_once("@@") {
                let version = Version { library: name.to_owned(), version: version.to_owned() };
                all.insert(symbol.to_owned(), version);
            }
        }
    }
    Ok(all)
}
