//! The manual pages of the programs.
//!
//! A page has two sources. The command line gives synopsis and options (clap). The chapter of the
//! book about the program (`docs/book/src/tools`, which `chapters` links to, so that a package of this
//! crate has it) gives the rest: it is turned from Markdown into
//! roff here. The Markdown of these chapters is plain: headings, paragraphs, lists, tables and
//! blocks of code.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use clap::Command;

const CHAPTERS: [(&str, &str); 6] = [
    ("exs-cp", include_str!("../chapters/exs-cp.md")),
    ("exs-info", include_str!("../chapters/exs-info.md")),
    ("exs-perf", include_str!("../chapters/exs-perf.md")),
    ("exs-pingpong", include_str!("../chapters/exs-pingpong.md")),
    ("exs-rdma-write", include_str!("../chapters/exs-rdma-write.md")),
    ("exs-top", include_str!("../chapters/exs-top.md")),
];

/// Writes the pages of a program and of its subcommands into a directory.
///
/// # Errors
/// A page cannot be written.
pub fn write(command: Command, dir: &Path) -> io::Result<()> {
    let name = command.get_name().to_owned();
    clap_mangen::generate_to(command, dir)?;
    let Some((_, chapter)) = CHAPTERS.iter().find(|(program, _)| *program == name) else {
        return Ok(());
    };
    let page = dir.join(format!("{name}.1"));
    OpenOptions::new().append(true).open(page)?.write_all(roff(chapter).as_bytes())
}

/// What a line of Markdown belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    None,
    Heading,
    Paragraph,
    Code,
    Table,
}

/// Sections of a manual page from a chapter of the book.
fn roff(chapter: &str) -> String {
    let mut out = String::from(".SH EXAMPLES\n");
    let mut block = Block::Heading;
    for line in chapter.lines().skip_while(|line| line.starts_with("# ")) {
        if line.starts_with("```") {
            let begins = block != Block::Code;
            if begins && block != Block::Heading {
                out.push_str(".PP\n");
            }
            out.push_str(if begins { ".RS 4\n.nf\n" } else { ".fi\n.RE\n" });
            block = if begins { Block::Code } else { Block::None };
        } else if block == Block::Code {
            out.push_str(&guarded(&escaped(line)));
        } else if let Some(title) = line.strip_prefix("## ") {
            out.push_str(&format!(".SH {}\n", escaped(&title.to_uppercase())));
            block = Block::Heading;
        } else if let Some(row) = line.strip_prefix('|') {
            // The head of a table and the line below it are not shown.
            if block == Block::Table {
                out.push_str(&table_row(row));
            } else if row.starts_with("---") {
                block = Block::Table;
            }
        } else if line.is_empty() {
            if block != Block::Heading {
                block = Block::None;
            }
        } else if let Some(item) = line.strip_prefix("- ") {
            out.push_str(".IP \\(bu 2\n");
            out.push_str(&guarded(&inline(item)));
            block = Block::Paragraph;
        } else {
            if block == Block::None {
                out.push_str(".PP\n");
            }
            out.push_str(&guarded(&inline(line.trim_start())));
            block = Block::Paragraph;
        }
    }
    out
}

fn table_row(row: &str) -> String {
    let mut cells = row.trim_end_matches('|').split('|').map(|cell| inline(cell.trim()));
    let head = cells.next().unwrap_or_default();
    format!(".TP\n{}{}", guarded(&head), guarded(&cells.collect::<Vec<_>>().join(", ")))
}

/// A line of text that roff does not take for a request.
fn guarded(line: &str) -> String {
    let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
    format!("{guard}{line}\n")
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

/// Text with code in bold, emphasis in italics, and links without their targets.
fn inline(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    let (mut code, mut emphasis) = (false, false);
    while let Some(c) = rest.chars().next() {
        let link = rest.strip_prefix('[').filter(|_| !code).and_then(|inside| {
            let (label, after) = inside.split_once("](")?;
            Some((label, after.split_once(')')?.1))
        });
        if let Some((label, after)) = link {
            out.push_str(&inline(label));
            rest = after;
            continue;
        }
        match c {
            '`' => {
                code = !code;
                out.push_str(if code { "\\fB" } else { "\\fR" });
            }
            '*' if !code => {
                // Strong text has two, and is shown as emphasis.
                rest = rest.strip_prefix("**").map_or(rest, |_| &rest[1..]);
                emphasis = !emphasis;
                out.push_str(if emphasis { "\\fI" } else { "\\fR" });
            }
            _ => out.push_str(&escaped(c.encode_utf8(&mut [0; 4]))),
        }
        rest = &rest[c.len_utf8()..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chapter_becomes_sections() {
        let chapter = "# x\n\nIntro.\n\n```sh\n.x -a\n```\n\n## Exit status\n\n| status | meaning |\n\
                       |---|---|\n| 0 | all done |\n\n- `--json`: *one*\n  object\n";
        let wanted = ".SH EXAMPLES\nIntro.\n.PP\n.RS 4\n.nf\n\\&.x \\-a\n.fi\n.RE\n.SH EXIT STATUS\n\
                      .TP\n0\nall done\n.IP \\(bu 2\n\\fB\\-\\-json\\fR: \\fIone\\fR\nobject\n";
        assert_eq!(roff(chapter), wanted);
    }

    #[test]
    fn links_lose_their_targets() {
        assert_eq!(inline("see [the `x`](a/b.md#c), **now**"), "see the \\fBx\\fR, \\fInow\\fR");
        assert_eq!(inline("`[fe80::1%eth0]:7471` a[0]"), "\\fB[fe80::1%eth0]:7471\\fR a[0]");
    }

    #[test]
    fn every_chapter_is_understood() {
        for (program, chapter) in CHAPTERS {
            let page = roff(chapter);
            assert!(chapter.starts_with(&format!("# {program}\n")), "{program}");
            assert!(
                page.contains(&escaped(program)) && !page.contains("](") && !page.contains("```")
            );
        }
    }
}
