//! JSON, as far as snapshots need it (RFC 8259): objects, lists, texts and whole numbers.

use std::fmt::{Display, Write};

/// Writes one object, which ends when it is dropped.
pub(super) struct Object<'a> {
    out: &'a mut String,
    empty: bool,
}

impl<'a> Object<'a> {
    /// Begins an object at the end of `out`.
    pub(super) fn new(out: &'a mut String) -> Object<'a> {
        out.push('{');
        Object { out, empty: true }
    }

    fn key(&mut self, key: &str) {
        if !std::mem::replace(&mut self.empty, false) {
            self.out.push(',');
        }
        text(self.out, key);
        self.out.push(':');
    }

    pub(super) fn number(&mut self, key: &str, value: u64) {
        self.key(key);
        push(self.out, value);
    }

    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        text(self.out, value);
    }

    /// A value that has a text, as an address.
    pub(super) fn shown(&mut self, key: &str, value: impl Display) {
        self.text(key, &value.to_string());
    }

    pub(super) fn texts<'b>(&mut self, key: &str, values: impl IntoIterator<Item = &'b str>) {
        self.key(key);
        self.out.push('[');
        for (n, value) in values.into_iter().enumerate() {
            if n > 0 {
                self.out.push(',');
            }
            text(self.out, value);
        }
        self.out.push(']');
    }

    /// An object as a value.
    pub(super) fn object(&mut self, key: &str) -> Object<'_> {
        self.key(key);
        Object::new(self.out)
    }

    /// A list of objects, each made by `each`.
    pub(super) fn objects<T>(
        &mut self,
        key: &str,
        values: impl IntoIterator<Item = T>,
        each: impl Fn(&mut Object<'_>, T),
    ) {
        self.key(key);
        self.out.push('[');
        for (n, value) in values.into_iter().enumerate() {
            if n > 0 {
                self.out.push(',');
            }
            each(&mut Object::new(self.out), value);
        }
        self.out.push(']');
    }
}

impl Drop for Object<'_> {
    fn drop(&mut self) {
        self.out.push('}');
    }
}

fn push(out: &mut String, value: impl Display) {
    // Writing to a string cannot fail.
    let _ = write!(out, "{value}");
}

fn text(out: &mut String, value: &str) {
    out.push('"');
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c < ' ' => push(out, format_args!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_lists_and_texts_are_json() {
        let mut out = String::new();
        let mut o = Object::new(&mut out);
        o.number("most", u64::MAX);
        o.text("odd", "a \"b\" \\ \n\u{1}é");
        o.texts("none", []);
        o.texts("two", ["x", "y"]);
        o.object("empty");
        o.objects("pairs", [1, 2], |o, n| o.number("n", n));
        o.shown("at", std::net::Ipv4Addr::LOCALHOST);
        drop(o);
        let wanted = r#"{"most":18446744073709551615,"odd":"a \"b\" \\ \u000a\u0001é","none":[],"#
            .to_owned()
            + r#""two":["x","y"],"empty":{},"pairs":[{"n":1},{"n":2}],"at":"127.0.0.1"}"#;
        assert_eq!(out, wanted);
    }
}
