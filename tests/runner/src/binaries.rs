//! Test binaries, as the JSON messages of `cargo test --no-run` name them.

use std::path::{Path, PathBuf};

/// One test binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binary {
    /// `PACKAGE` for the unit tests of a library, `PACKAGE/TARGET` for others.
    pub(crate) name: String,
    pub(crate) executable: PathBuf,
    /// The directory of its package, in which it runs.
    pub(crate) home: PathBuf,
}

impl Binary {
    /// The name as a file name.
    pub(crate) fn file_name(&self) -> String {
        self.name.replace('/', ".")
    }
}

/// All test binaries, in the order of the messages.
pub(crate) fn tests(messages: &str) -> Vec<Binary> {
    messages.lines().filter_map(test).collect()
}

fn test(message: &str) -> Option<Binary> {
    let executable = string(message, "executable")?;
    let (_, profile) = message.split_once("\"profile\":{")?;
    let (profile, _) = profile.split_once('}')?;
    if !profile.contains("\"test\":true") {
        return None;
    }
    let home = Path::new(&string(message, "manifest_path")?).parent()?.to_path_buf();
    let (_, target) = message.split_once("\"target\":{")?;
    let target_name = string(target, "name")?;
    let package = package(&string(message, "package_id")?)?;
    let is_lib = target.starts_with("\"kind\":[\"lib\"]");
    let name = if is_lib { package } else { format!("{package}/{target_name}") };
    Some(Binary { name, executable: executable.into(), home })
}

/// The package of an id such as `path+file:///DIR/exs#0.1.0` or `path+file:///DIR/tests#exs-tests@0.1.0`.
fn package(id: &str) -> Option<String> {
    let (path, version) = id.rsplit_once('#')?;
    let name = match version.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next()?,
    };
    Some(name.to_owned())
}

/// The first string with this key.
fn string(json: &str, key: &str) -> Option<String> {
    let (_, rest) = json.split_once(&format!("\"{key}\":\""))?;
    let mut value = String::new();
    let mut chars = rest.chars();
    loop {
        match chars.next()? {
            '"' => return Some(value),
            '\\' => value.push(chars.next()?),
            c => value.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: &str, name: &str, test: bool, executable: &str) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","package_id":"path+file:///x/tests#exs-tests@0.1.0","manifest_path":"/x/tests/Cargo.toml","target":{{"kind":["{kind}"],"name":"{name}","src_path":"/x/tests/a.rs","test":true}},"profile":{{"opt_level":"0","test":{test}}},"features":[],"executable":{executable},"fresh":true}}"#
        )
    }

    #[test]
    fn only_test_executables_are_found() {
        let messages = [
            message("test", "shm", true, "\"/x/target/shm-1f\""),
            message("bin", "tool", false, "\"/x/target/tool\""),
            message("lib", "exs_tests", true, "\"/x/target/exs_tests-2\""),
            message("lib", "exs_tests", false, "null"),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let found = tests(&messages.join("\n"));
        let names: Vec<_> = found.iter().map(|b| b.name.as_str()).collect();
        assert_eq!(names, ["exs-tests/shm", "exs-tests"]);
        assert_eq!(found[0].home, Path::new("/x/tests"));
        assert_eq!(found[0].executable, Path::new("/x/target/shm-1f"));
        assert_eq!(found[0].file_name(), "exs-tests.shm");
    }

    #[test]
    fn a_package_is_named_by_its_directory_where_the_id_has_no_name() {
        assert_eq!(package("path+file:///x/exs#0.1.0").unwrap(), "exs");
        assert_eq!(package("nothing"), None);
    }

    #[test]
    fn escapes_are_undone() {
        assert_eq!(string(r#"{"executable":"/a \"b\"/c"}"#, "executable").unwrap(), "/a \"b\"/c");
    }
}
