//! The house rules of this repository, as tests.
//!
//! Each rule is a function from a source (or the whole tree) to findings, and
//! each has a test with a bad sample beside it, so that a rule which has gone
//! blind fails too. The checks read text, not syntax trees: comments and
//! literals are blanked out first (`source`), and then tokens are looked at.
//! That is good enough for code that `rustfmt` and the compiler accept, and it
//! needs no dependency. `spec-notes/ARCHITECTURE.md` gives the reasons.

mod book;
mod docs;
mod errors;
mod floors;
mod format;
mod islands;
mod msrv;
mod names;
mod purity;
mod sizes;
mod source;
mod tour;
mod words;

use source::{Source, tree};

/// Fails with all findings at once: one run shows all there is to mend.
#[track_caller]
fn expect_none(findings: &[String]) {
    assert!(findings.is_empty(), "{} finding(s):\n  {}", findings.len(), findings.join("\n  "));
}

fn over_rust(rule: impl Fn(&Source) -> Vec<String>) -> Vec<String> {
    tree().iter().filter(|s| s.is_rust()).flat_map(rule).collect()
}

#[test]
fn the_tree_is_seen() {
    let paths: Vec<_> = tree().iter().map(|s| s.path.clone()).collect();
    for must in ["exs/src/lib.rs", "exs/src/mem/raw.rs", "Makefile", ".ci/run", "README.md"] {
        assert!(paths.iter().any(|p| p == must), "{must} is not among {} files", paths.len());
    }
    assert!(!paths.iter().any(|p| p.starts_with("target/")), "build output is not source");
}

#[test]
fn a_file_imports_lower_floors_only() {
    expect_none(&over_rust(floors::check));
}

#[test]
fn the_floors_are_those_of_the_architecture_document() {
    let all = tree();
    let doc = all.iter().find(|s| s.path == "spec-notes/ARCHITECTURE.md").expect("the document");
    expect_none(&floors::check_document(doc));
}

#[test]
fn files_and_functions_are_short() {
    let long: Vec<_> = over_rust(sizes::long_files);
    if !long.is_empty() {
        println!("files to split before they grow further:\n  {}", long.join("\n  "));
    }
    expect_none(&over_rust(sizes::check));
}

#[test]
fn every_file_is_formatted() {
    let rust: Vec<_> =
        tree().iter().filter(|s| s.is_rust()).map(|s| s.path.clone().into()).collect();
    match format::misformatted(&source::top(), &rust) {
        Some(findings) => expect_none(&findings),
        None => exs_tests::skip::skip("there is no rustfmt"),
    }
}

#[test]
fn unsafe_stays_on_its_islands_and_argues() {
    expect_none(&over_rust(islands::check));
}

#[test]
fn errors_say_their_cause_once() {
    expect_none(&over_rust(errors::check_said_once));
}

#[test]
fn programs_print_without_a_panic() {
    expect_none(&over_rust(errors::check_prints));
}

#[test]
fn protocol_floors_do_no_io_and_read_no_clock() {
    expect_none(&over_rust(purity::check));
}

#[test]
fn nothing_is_left_for_later_and_no_test_sleeps() {
    expect_none(&over_rust(words::check_rust));
}

#[test]
fn nothing_speaks_of_one_developers_machine() {
    let findings: Vec<_> = tree().iter().flat_map(words::check_text).collect();
    expect_none(&findings);
}

#[test]
fn comments_and_documents_are_free_of_phrases_that_readers_stumble_over() {
    expect_none(&words::check_phrases(&tree()));
}

#[test]
fn a_type_name_stands_for_one_thing() {
    let (shared, limit) = (names::shared(&tree()), names::SHARED_MAX);
    assert!(
        shared.len() <= limit,
        "{} type names are defined in more than one file, {limit} are the limit: rename one of\n  {}",
        shared.len(),
        shared.join("\n  ")
    );
}

#[test]
fn modules_open_with_an_essay() {
    expect_none(&over_rust(docs::check_essay));
}

#[test]
fn links_between_documents_lead_somewhere() {
    let all = tree();
    let findings: Vec<_> = all.iter().flat_map(|s| docs::check_links(s, &source::exists)).collect();
    expect_none(&findings);
    expect_none(&book::check_anchors(&all));
}

#[test]
fn every_page_is_in_the_book_and_the_guide_in_rustdoc() {
    let all = tree();
    expect_none(&book::check_summary(&all));
    expect_none(&book::check_guide(&all));
}

#[test]
fn every_program_of_the_book_stands_where_a_test_runs_it() {
    let findings: Vec<_> = tree().iter().flat_map(book::check_programs).collect();
    expect_none(&findings);
}

#[test]
fn the_tour_names_files_and_functions_that_exist() {
    expect_none(&tour::findings(&tree()));
}

#[test]
fn environment_variables_are_documented_and_exist() {
    expect_none(&docs::check_variables(&tree()));
}

#[test]
fn every_member_takes_the_workspace_lints() {
    let findings: Vec<_> = tree().iter().flat_map(docs::check_manifest).collect();
    expect_none(&findings);
}

#[test]
fn the_minimum_rust_version_is_the_same_everywhere_and_enough() {
    let all = tree();
    expect_none(&msrv::check_places(&all));
    expect_none(&over_rust(msrv::check_language));
    expect_none(&msrv::check_dependencies(&all));
}
