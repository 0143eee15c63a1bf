//! The C programs of the book (`docs/book/src/c`): each is compiled against libexs as a user compiles
//! it, runs, and prints what the page says.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use exs_tests::harness::Watchdog;

use super::{has, plain, run, top};

/// A program, and what the page says that it prints.
#[derive(Debug, PartialEq)]
struct Program {
    code: String,
    prints: String,
}

/// The blocks of a page in a language, with where each begins.
fn blocks(page: &str, language: &str) -> Vec<(usize, String)> {
    let fence = format!("```{language}\n");
    let mut found = Vec::new();
    for (at, _) in page.match_indices(&fence) {
        let body = &page[at + fence.len()..];
        let end = body.find("```").expect("the end of a block");
        found.push((at, body[..end].to_owned()));
    }
    found
}

/// The programs of a page: each has its output in the next block of text.
fn programs(page: &str) -> Vec<Program> {
    let outputs = blocks(page, "text");
    blocks(page, "c")
        .into_iter()
        .map(|(at, code)| {
            let prints = outputs.iter().find(|(there, _)| *there > at);
            let (_, prints) = prints.expect("a block `text` with the output behind each program");
            Program { code, prints: prints.clone() }
        })
        .collect()
}

/// Compiles a program, linked with the shared library, and runs it.
fn printed(name: &str, code: &str) -> String {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (tmp.join(format!("{name}.c")), tmp.join(name));
    fs::write(&source, code).unwrap();
    let lib = plain().parent().expect("beside the suite").join("c-suite-lib");
    run(Command::new("gcc")
        .args(["-std=gnu99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .arg("-I")
        .arg(top().join("exs-ffi/include"))
        .arg(&source)
        .arg("-o")
        .arg(&binary)
        .arg("-L")
        .arg(&lib)
        .arg(format!("-Wl,-rpath,{}", lib.display()))
        .arg("-lexs"));
    run(&mut Command::new(&binary))
}

#[test]
fn every_program_of_the_book_compiles_and_prints_what_its_page_says() {
    if !has("gcc", "the C programs of the book are not compiled") {
        return;
    }
    let _dog = Watchdog::with_limit("every_program_of_the_book", Duration::from_secs(240));
    let mut tried = 0;
    let mut pages: Vec<_> =
        fs::read_dir(top().join("docs/book/src/c")).unwrap().map(|e| e.unwrap().path()).collect();
    pages.sort();
    for page in pages {
        let stem = page.file_stem().unwrap().to_string_lossy().into_owned();
        for (i, program) in programs(&fs::read_to_string(&page).unwrap()).iter().enumerate() {
            let prints = printed(&format!("book-{stem}-{i}"), &program.code);
            assert_eq!(prints, program.prints, "program {i} of {}", page.display());
            tried += 1;
        }
    }
    assert!(tried > 0, "the book has no program in C");
}

#[test]
fn programs_are_found_with_their_output() {
    let page = "x\n```c\nint a;\n```\nprints\n```text\n1\n```\n```sh\nmake\n```\n";
    let found = Program { code: "int a;\n".to_owned(), prints: "1\n".to_owned() };
    assert_eq!(programs(page), [found]);
}
