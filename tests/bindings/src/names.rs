//! The names of the C libraries that EXS uses: paths that begin with `sys::`, and fields.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::{self, Visit};

/// What the sources below a directory use.
#[derive(Default)]
pub struct Used {
    /// Names after `sys::`.
    pub names: BTreeSet<String>,
    /// Constants of enumerations: `(enumeration, constant)`.
    pub constants: BTreeSet<(String, String)>,
    /// The names of all fields that the sources read or write.
    pub fields: BTreeSet<String>,
    /// Other names of enumerations (`use sys::ibv_wr_opcode as op`), in the file under way.
    aliases: BTreeMap<String, String>,
}

impl Used {
    /// Reads the sources. The file with the declarations themselves does not count.
    pub fn of(raw: &Path) -> Result<Used, String> {
        let mut used = Used::default();
        used.read_directory(raw)?;
        Ok(used)
    }

    fn read_directory(&mut self, at: &Path) -> Result<(), String> {
        let entries = std::fs::read_dir(at).map_err(|e| format!("{}: {e}", at.display()))?;
        for entry in entries {
            let path = entry.map_err(|e| format!("{}: {e}", at.display()))?.path();
            if path.is_dir() {
                self.read_directory(&path)?;
            } else if path.extension().is_some_and(|e| e == "rs")
                && path.file_name().is_some_and(|name| name != "bindings.rs")
            {
                self.aliases.clear();
                let file = parse(&path)?;
                self.visit_file(&file);
            }
        }
        Ok(())
    }

    fn note_path(&mut self, path: &syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        match parts.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["sys", name] => drop(self.names.insert(name.to_owned())),
            ["sys", name, constant] => self.note_constant(name, constant),
            [alias, constant] => {
                if let Some(name) = self.aliases.get(alias).cloned() {
                    self.note_constant(&name, constant);
                }
            }
            _ => {}
        }
    }

    fn note_constant(&mut self, name: &str, constant: &str) {
        self.names.insert(name.to_owned());
        self.constants.insert((name.to_owned(), constant.to_owned()));
    }
}

impl<'ast> Visit<'ast> for Used {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.note_path(path);
        visit::visit_path(self, path);
    }

    fn visit_member(&mut self, member: &'ast syn::Member) {
        if let syn::Member::Named(name) = member {
            self.fields.insert(name.to_string());
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if let syn::UseTree::Path(path) = &item.tree
            && path.ident == "sys"
            && let syn::UseTree::Rename(rename) = &*path.tree
        {
            let (name, alias) = (rename.ident.to_string(), rename.rename.to_string());
            self.names.insert(name.clone());
            self.aliases.insert(alias, name);
        }
    }

    /// The argument of a macro counts if it is an expression, or a list of some.
    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        type List = syn::punctuated::Punctuated<syn::Expr, syn::Token![,]>;
        if let Ok(list) = mac.parse_body_with(List::parse_terminated) {
            // The syntax tree lives as long as this call only.
            for expr in list {
                let mut inner = Used { aliases: self.aliases.clone(), ..Used::default() };
                inner.visit_expr(&expr);
                self.names.append(&mut inner.names);
                self.constants.append(&mut inner.constants);
                self.fields.append(&mut inner.fields);
            }
        }
    }
}

/// Parses a source file.
pub fn parse(path: &Path) -> Result<syn::File, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    syn::parse_file(&text).map_err(|e| format!("{}: {e}", path.display()))
}
