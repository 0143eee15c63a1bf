//! Chooses the declarations and prints them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use quote::{ToTokens, format_ident};
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};

use crate::names::Used;
use crate::versions::Version;

const HEAD: &str = "\
//! Declarations of libibverbs and librdmacm, made of those of rdma-sys by `make bindings`. Do not
//! edit: `make check-bindings` compares this file with a new one.
//!
//! They are the same on x86-64 and aarch64: what differs there are the types of libc.
";

/// All that rdma-sys declares, by name.
#[derive(Default)]
struct Declared<'a> {
    types: BTreeMap<String, &'a syn::Item>,
    modules: BTreeMap<String, &'a syn::ItemMod>,
    /// Constants of enumerations that are a structure of one number.
    flags: BTreeMap<String, Vec<&'a syn::ImplItemConst>>,
    functions: BTreeMap<String, &'a syn::ForeignItemFn>,
}

impl<'a> Declared<'a> {
    fn of(files: &'a [syn::File]) -> Declared<'a> {
        let mut all = Declared::default();
        for item in files.iter().flat_map(|file| &file.items) {
            all.add(item);
        }
        all
    }

    fn add(&mut self, item: &'a syn::Item) {
        match item {
            syn::Item::Struct(s) => drop(self.types.insert(s.ident.to_string(), item)),
            syn::Item::Union(u) => drop(self.types.insert(u.ident.to_string(), item)),
            syn::Item::Enum(e) => drop(self.types.insert(e.ident.to_string(), item)),
            syn::Item::Type(t) => drop(self.types.insert(t.ident.to_string(), item)),
            syn::Item::Mod(m) => drop(self.modules.insert(m.ident.to_string(), m)),
            syn::Item::ForeignMod(m) => {
                for f in &m.items {
                    if let syn::ForeignItem::Fn(f) = f {
                        self.functions.insert(f.sig.ident.to_string(), f);
                    }
                }
            }
            syn::Item::Impl(i) if i.trait_.is_none() => {
                let name = i.self_ty.to_token_stream().to_string();
                let constants = i.items.iter().filter_map(|item| match item {
                    syn::ImplItem::Const(c) => Some(c),
                    _ => None,
                });
                self.flags.entry(name).or_default().extend(constants);
            }
            _ => {}
        }
    }
}

/// The declarations that are wanted, and how much of each.
struct Choice<'a> {
    used: &'a Used,
    declared: Declared<'a>,
    /// Types with their fields.
    full: BTreeSet<String>,
    /// Types that are only pointed to.
    opaque: BTreeSet<String>,
    functions: BTreeSet<String>,
}

impl Choice<'_> {
    fn want(&mut self, name: &str) {
        if let Some(f) = self.declared.functions.get(name).copied() {
            if self.functions.insert(name.to_owned()) {
                self.look_at(|seen| seen.visit_signature(&f.sig));
            }
        } else if let Some(item) = self.declared.types.get(name).copied() {
            if self.full.insert(name.to_owned()) {
                let item = trimmed(item, self.used);
                self.look_at(|seen| seen.visit_item(&item));
            }
        } else if self.declared.modules.contains_key(name) {
            self.full.insert(name.to_owned());
        }
    }

    fn look_at(&mut self, look: impl FnOnce(&mut Contained)) {
        let mut seen = Contained::default();
        look(&mut seen);
        self.opaque.extend(seen.pointed);
        for name in seen.by_value {
            self.want(&name);
        }
    }
}

/// The types that a declaration contains, by value and behind pointers.
#[derive(Default)]
struct Contained {
    by_value: Vec<String>,
    pointed: Vec<String>,
}

impl<'ast> Visit<'ast> for Contained {
    fn visit_type_ptr(&mut self, pointer: &'ast syn::TypePtr) {
        match &*pointer.elem {
            syn::Type::Path(to) => self.pointed.push(first(&to.path)),
            other => visit::visit_type(self, other),
        }
    }

    fn visit_type_path(&mut self, path: &'ast syn::TypePath) {
        self.by_value.push(first(&path.path));
        visit::visit_type_path(self, path);
    }
}

fn first(path: &syn::Path) -> String {
    path.segments.first().map(|s| s.ident.to_string()).unwrap_or_default()
}

/// The declaration without comments, and without the signatures of functions that EXS does not call.
fn trimmed(item: &syn::Item, used: &Used) -> syn::Item {
    struct Trim<'a>(&'a Used);
    impl VisitMut for Trim<'_> {
        fn visit_attributes_mut(&mut self, attrs: &mut Vec<syn::Attribute>) {
            attrs.retain(|a| !a.path().is_ident("doc"));
            for a in attrs.iter_mut().filter(|a| a.path().is_ident("derive")) {
                *a = syn::parse_quote!(#[derive(Clone, Copy)]);
            }
        }

        fn visit_field_mut(&mut self, field: &mut syn::Field) {
            let called =
                field.ident.as_ref().is_some_and(|i| self.0.fields.contains(&i.to_string()));
            let is_function = field.ty.to_token_stream().to_string().contains("extern \"C\" fn");
            if is_function && !called {
                field.ty = syn::parse_quote!(Uncalled);
            }
            visit_mut::visit_field_mut(self, field);
        }
    }
    let mut item = item.clone();
    Trim(used).visit_item_mut(&mut item);
    item
}

/// Makes all items visible in the crate's own directory only, and gives types of libc their name.
struct Polish;

impl VisitMut for Polish {
    fn visit_type_path_mut(&mut self, path: &mut syn::TypePath) {
        visit_mut::visit_type_path_mut(self, path);
        let name = path.path.to_token_stream().to_string().replace(' ', "");
        let libc = name.strip_prefix("::std::os::raw::").unwrap_or(&name);
        if libc.starts_with("pthread_") || libc.starts_with("sockaddr") || libc.starts_with("c_") {
            let ident = format_ident!("{libc}");
            path.path = syn::parse_quote!(libc::#ident);
        } else if let Some(std) = name.strip_prefix("::std::option::") {
            path.path = syn::parse_str(std).unwrap_or_else(|_| path.path.clone());
            visit_mut::visit_path_mut(self, &mut path.path);
        }
    }
}

/// Prints the declarations of all that is used.
pub fn declarations(
    used: &Used,
    files: &[syn::File],
    versions: &BTreeMap<String, Version>,
) -> Result<String, String> {
    let mut choice = Choice {
        used,
        declared: Declared::of(files),
        full: BTreeSet::new(),
        opaque: BTreeSet::new(),
        functions: BTreeSet::new(),
    };
    for name in &used.names {
        choice.want(name);
    }
    let uncalled = "pub type Uncalled = Option<unsafe extern \"C\" fn()>;";
    let mut items: Vec<syn::Item> = vec![syn::parse_str(uncalled).map_err(|e| e.to_string())?];
    for name in &choice.full {
        items.extend(full(&choice, name));
    }
    let opaque: Vec<&String> = choice.opaque.iter().filter(|n| !choice.full.contains(*n)).collect();
    for name in opaque {
        // Types of libc and of Rust are pointed to, too.
        if choice.declared.types.contains_key(name) {
            let ident = format_ident!("{name}");
            items.push(syn::parse_quote!(
                #[repr(C)]
                pub struct #ident {
                    _opaque: [u8; 0],
                }
            ));
        }
    }
    let mut file = syn::File { shebang: None, attrs: Vec::new(), items };
    Polish.visit_file_mut(&mut file);
    let mut text = format!("{HEAD}\n{}", prettyplease::unparse(&file));
    text += &functions(&choice, versions)?;
    text += &layouts(&choice, &file);
    Ok(text.replace("::std::option::Option", "Option"))
}

/// A type with its fields, or an enumeration with the constants that EXS uses.
fn full(choice: &Choice<'_>, name: &str) -> Vec<syn::Item> {
    let wanted = |constant: &syn::Ident| {
        choice.used.constants.contains(&(name.to_owned(), constant.to_string()))
    };
    if let Some(module) = choice.declared.modules.get(name) {
        let mut module = (*module).clone();
        if let Some((_, items)) = &mut module.content {
            items.retain(|item| match item {
                syn::Item::Const(c) => wanted(&c.ident),
                _ => true,
            });
        }
        return vec![syn::Item::Mod(module)];
    }
    let ident = format_ident!("{name}");
    if let Some(syn::Item::Enum(_)) = choice.declared.types.get(name) {
        // A newer library may give a value that no variant has.
        return vec![syn::parse_quote!(pub type #ident = libc::c_uint;)];
    }
    let Some(item) = choice.declared.types.get(name) else { return Vec::new() };
    if matches!(item, syn::Item::Type(_)) && name.starts_with("pthread_") {
        return Vec::new();
    }
    let mut items = vec![trimmed(item, choice.used)];
    let constants: Vec<_> = choice.declared.flags.get(name).into_iter().flatten().collect();
    let constants: Vec<_> = constants.into_iter().filter(|c| wanted(&c.ident)).collect();
    if !constants.is_empty() {
        items.push(syn::parse_quote!(impl #ident { #(#constants)* }));
    }
    items
}

fn functions(choice: &Choice<'_>, versions: &BTreeMap<String, Version>) -> Result<String, String> {
    let mut by_library: BTreeMap<&str, Vec<syn::ForeignItem>> = BTreeMap::new();
    for name in &choice.functions {
        let at = versions.get(name).ok_or_else(|| format!("no library has {name}"))?;
        let mut f = choice.declared.functions[name].clone();
        let version = &at.version;
        f.attrs = vec![syn::parse_quote!(#[version = #version])];
        by_library.entry(&at.library).or_default().push(syn::ForeignItem::Fn(f));
    }
    let mut text =
        "\n#[cfg(not(feature = \"verbs-link\"))]\nsuper::load::functions! {\n".to_owned();
    for (library, functions) in by_library {
        let block = syn::parse_quote!(extern "C" { #(#functions)* });
        let mut file = syn::File { shebang: None, attrs: Vec::new(), items: vec![block] };
        Polish.visit_file_mut(&mut file);
        let block = prettyplease::unparse(&file).replace("extern \"C\"", &format!("\"{library}\""));
        for line in block.lines() {
            let _ = writeln!(text, "    {line}");
        }
    }
    text += "}\n";
    Ok(text.replace("::std::option::Option", "Option"))
}

/// The list of all layouts and constants, for the test that compares them with those of rdma-sys.
fn layouts(choice: &Choice<'_>, file: &syn::File) -> String {
    let mut text = "\n#[cfg(all(test, feature = \"verbs-link\"))]\n\
        super::compare::layouts! {\n"
        .to_owned();
    for item in &file.items {
        let (ident, fields) = match item {
            syn::Item::Struct(s) => (&s.ident, s.fields.iter().collect::<Vec<_>>()),
            syn::Item::Union(u) => (&u.ident, u.fields.named.iter().collect()),
            _ => continue,
        };
        let names: Vec<_> = fields.iter().filter_map(|f| f.ident.as_ref()).collect();
        if choice.full.contains(&ident.to_string()) {
            text += &wrapped(&format!("type {ident} {{ {} }};", join(&names)));
        }
    }
    for (name, constant) in &choice.used.constants {
        let _ = writeln!(text, "    const {name}::{constant};");
    }
    text += "}\n";
    text
}

fn join(names: &[&syn::Ident]) -> String {
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The words of `text` in lines of 100 columns, each with a margin.
fn wrapped(text: &str) -> String {
    let (mut out, mut line) = (String::new(), "   ".to_owned());
    for word in text.split(' ') {
        if line.len() + 1 + word.len() > 100 {
            out += &line;
            out.push('\n');
            line = "       ".to_owned();
        }
        line.push(' ');
        line += word;
    }
    out + &line + "\n"
}
