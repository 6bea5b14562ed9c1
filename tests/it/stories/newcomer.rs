//! A projection as a newcomer writes it: the file as it is printed in a document, and every
//! command behind it (API-02).

use std::path::Path;

use crate::harness::{
    events::adjustments,
    loopback,
    pair::directory,
    process::{Launch, Process},
    publisher::Publisher,
    tools::{has, skip},
};

/// Where the documents' receivers of one's own listen, and where their publisher does.
const RECEIVERS: [&str; 2] = ["7603", "7604"];
const PUBLISHER: &str = "localhost:7601";

#[tokio::test(flavor = "multi_thread")]
async fn api_02_the_readme_ends_with_a_projection_of_ones_own() {
    let section = section("README.md", "## Tables of your own");
    assert!(block(&section, "toml").lines().count() < 20, "short enough to be typed");
    // What README has published before.
    types(&section, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn api_02_the_first_projection_of_the_document_works_as_printed() {
    types(&section("docs/projections.md", "## A first one"), 0).await;
}

/// A section of a document, up to the next one.
fn section(page: &str, heading: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let page = std::fs::read_to_string(path).expect("there");
    let (_, rest) = page.split_once(&format!("{heading}\n")).expect("the heading");
    rest.split("\n## ").next().expect("at least the start").to_owned()
}

/// The first block of a language.
fn block<'s>(section: &'s str, language: &str) -> &'s str {
    let (_, rest) = section.split_once(&format!("```{language}\n")).expect("a block");
    rest.split("```").next().expect("at least the start")
}

/// Writes the file, types each command, and compares what sqlite3 says with what is printed.
/// `before`: events that stand in the log already.
async fn types(section: &str, before: usize) {
    for tool in ["grpcurl", "sqlite3"] {
        if !has(tool) {
            skip!("{tool} is missing");
        }
    }
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    for event in adjustments("k", before) {
        publisher.accepts(event).await;
    }
    let mut receiver: Option<Process> = None;
    let mut address = None;
    for command in block(section, "sh").lines() {
        let place = dir.path().to_str().expect("text");
        let mut here = command
            .replace("/tmp/", &format!("{place}/"))
            .replace(PUBLISHER, &publisher.address.to_string());
        for port in RECEIVERS {
            here = here.replace(&format!("127.0.0.1:{port}"), &listen());
            if let Some(address) = address {
                here = here.replace(&format!("localhost:{port}"), &format!("{address}"));
            }
        }
        let words: Vec<&str> = here.split_whitespace().collect();
        let file = words.iter().find(|word| word.ends_with(".toml"));
        let in_place = |word: &str| match word.ends_with(".toml") {
            true => format!("{place}/{word}"),
            false => word.to_owned(),
        };
        if let Some(file) = file {
            std::fs::write(dir.path().join(file), block(section, "toml")).expect("written");
        }
        if let ["receiver", arguments @ .., "&"] = words.as_slice() {
            let arguments = arguments.iter().map(|word| in_place(word));
            let launch = Launch::new(env!("CARGO_BIN_EXE_receiver"))
                .args(arguments)
                .args(["--publisher", &publisher.url()]);
            let (process, at) = launch.try_start().expect("it listens");
            (receiver, address) = (Some(process), Some(at));
            continue;
        }
        let ended = match words.as_slice() {
            ["receiver", arguments @ ..] => Launch::new(env!("CARGO_BIN_EXE_receiver"))
                .args(arguments.iter().map(|word| in_place(word)))
                .run(),
            _ => Launch::new("sh").args(["-c", &here]).run(),
        };
        assert_eq!(ended.code(), Some(0), "{command}\n{ended:?}");
        assert!(!ended.stdout.is_empty(), "{command}\n{ended:?}");
        if command.starts_with("sqlite3") && section.contains("```text") {
            assert_eq!(ended.stdout, block(section, "text"), "{command}");
        }
    }
    assert!(receiver.is_some_and(|mut receiver| receiver.runs()), "it was started, and runs");
}

fn listen() -> String {
    std::net::SocketAddr::new(loopback::address(), 0).to_string()
}
