//! `counterfoil receipt`: what became of a key.

use std::process::ExitCode;

use counterfoil::proto::{
    event::hex,
    pb::{GetReceiptRequest, GetReceiptResponse, ReceiptState, ReceiverOutcome},
};
use serde_json::json;

use crate::{arguments, failure::Failure, link, numbers::grouped, output::say};

/// Prints the receipt; exit code 1 if there is none.
///
/// # Errors
/// [`Failure::Runtime`] when the publisher refuses or cannot be reached.
pub async fn run(arguments: arguments::Receipt) -> Result<ExitCode, Failure> {
    let mut client = link::publisher(&arguments.source.publisher)?;
    let response = client
        .get_receipt(link::call(request(&arguments)))
        .await
        .map_err(|status| Failure::call(&arguments.source.publisher, &status))?
        .into_inner();
    let accepted = response.state() == ReceiptState::Accepted;
    say(if arguments.json { as_json(response) } else { as_text(response) });
    Ok(if accepted { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn request(arguments: &arguments::Receipt) -> GetReceiptRequest {
    GetReceiptRequest {
        log: arguments.source.log.clone(),
        key: arguments.key.clone(),
        first_attempt_time: arguments.first_attempt_time,
    }
}

fn state_word(response: &GetReceiptResponse) -> &'static str {
    word(response.state().as_str_name(), "RECEIPT_STATE_")
}

fn outcome_word(told: &ReceiverOutcome) -> &'static str {
    word(told.outcome().as_str_name(), "OUTCOME_")
}

fn word(name: &'static str, prefix: &str) -> &'static str {
    name.strip_prefix(prefix).unwrap_or(name)
}

fn as_text(response: GetReceiptResponse) -> String {
    let state = state_word(&response);
    let Some(receipt) = response.receipt else {
        return match response.state() {
            ReceiptState::Expired => format!(
                "state        {state}\nWhether it was accepted is no longer known: its time lies \
                 before the log's key floor, or\nit states none, in the key or with \
                 --first-attempt-time, and the log has forgotten receipts\nof keys that had \
                 stated one."
            ),
            _ => format!("state        {state}"),
        };
    };
    let time = receipt.accept_time.map(|time| time.to_string()).unwrap_or_default();
    let kept = receipt.expire_time.map_or("for ever".to_owned(), |time| format!("until {time}"));
    let mut rows = vec![
        ("state", state.to_owned()),
        ("key", receipt.key),
        ("sequence", grouped(receipt.sequence.unwrap_or(-1))),
        ("version", grouped(receipt.subject_version.unwrap_or(-1))),
        ("accepted", time),
        ("kept", kept),
        ("fingerprint", hex(&receipt.fingerprint)),
        ("log id", receipt.log_id),
    ];
    // The label once, the receivers below each other.
    let labels = std::iter::once("receivers").chain(std::iter::repeat(""));
    rows.extend(labels.zip(response.outcomes.iter().map(told)));
    let lines: Vec<_> =
        rows.into_iter().map(|(name, value)| format!("{name:<13}{value}")).collect();
    lines.join("\n")
}

/// One receiver's outcome on one line.
fn told(told: &ReceiverOutcome) -> String {
    let ReceiverOutcome { receiver, reason, result, .. } = told;
    let mut line = format!("{receiver}: {}", outcome_word(told));
    for more in [reason, result].into_iter().filter(|more| !more.is_empty()) {
        line.push(' ');
        // What a receiver says may hold anything; a terminal obeys control characters.
        line.extend(more.chars().filter(|c| !c.is_control()));
    }
    line
}

fn as_json(response: GetReceiptResponse) -> String {
    let state = state_word(&response);
    let receipt = response.receipt.map(|receipt| {
        json!({
            "logId": receipt.log_id,
            "sequence": receipt.sequence,
            "key": receipt.key,
            "subjectVersion": receipt.subject_version,
            "fingerprint": hex(&receipt.fingerprint),
            "acceptTime": receipt.accept_time.map(|time| time.to_string()),
            "expireTime": receipt.expire_time.map(|time| time.to_string()),
        })
    });
    let outcomes: Vec<_> = response
        .outcomes
        .iter()
        .map(|told| {
            json!({
                "receiver": told.receiver,
                "outcome": outcome_word(told),
                "reason": told.reason,
                // JSON by contract; what is none is shown as the text that it is.
                "result": serde_json::from_str(&told.result).unwrap_or(json!(told.result)),
            })
        })
        .collect();
    json!({ "state": state, "receipt": receipt, "outcomes": outcomes }).to_string()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use counterfoil::proto::pb::{Outcome, Receipt};
    use prost_types::Timestamp;

    use super::*;

    fn accepted() -> GetReceiptResponse {
        GetReceiptResponse {
            state: ReceiptState::Accepted.into(),
            receipt: Some(Receipt {
                sequence: Some(1234),
                key: "k1".into(),
                subject_version: Some(2),
                fingerprint: vec![1, 2].into(),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn a_receipt_is_shown_with_its_place() {
        let text = as_text(accepted());
        assert!(
            text.starts_with("state        ACCEPTED\nkey          k1\nsequence     1,234"),
            "{text}"
        );
        assert!(as_json(accepted()).contains(r#""sequence":1234"#));
    }

    #[test]
    fn the_time_of_its_intent_may_be_stated() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            receipt: arguments::Receipt,
        }
        let parse = |time: &[&str]| Line::try_parse_from([&["receipt", "k1"][..], time].concat());
        let asked = |line: Line| request(&line.receipt).first_attempt_time;
        assert_eq!(parse(&[]).map(asked).expect("valid"), None);
        let stated = parse(&["--first-attempt-time", "2026-01-31T12:00:00Z"]).map(asked);
        let seconds = 1_769_860_800;
        assert_eq!(stated.expect("valid"), Some(Timestamp { seconds, nanos: 0 }));
        assert!(parse(&["--first-attempt-time", "yesterday"]).is_err());
    }

    #[test]
    fn an_unknown_key_has_no_receipt() {
        let response = || GetReceiptResponse {
            state: ReceiptState::NeverAccepted.into(),
            ..Default::default()
        };
        assert_eq!(as_text(response()), "state        NEVER_ACCEPTED");
        let json = r#"{"outcomes":[],"receipt":null,"state":"NEVER_ACCEPTED"}"#;
        assert_eq!(as_json(response()), json);
    }

    #[test]
    fn what_receivers_did_stands_below_the_receipt() {
        let told = |receiver: &str, outcome: Outcome, reason: &str, result: &str| ReceiverOutcome {
            receiver: receiver.into(),
            outcome: outcome.into(),
            reason: reason.into(),
            result: result.into(),
        };
        let response = || GetReceiptResponse {
            outcomes: vec![
                told("shop", Outcome::Rejected, "insufficient_stock", "{\"available\":1}"),
                told("audit", Outcome::Applied, "", ""),
                told("odd", Outcome::Skipped, "\u{1b}[31mred", "no JSON"),
            ],
            ..accepted()
        };
        let text = as_text(response());
        let below = "receivers    shop: REJECTED insufficient_stock {\"available\":1}\n             \
                     audit: APPLIED\n             odd: SKIPPED [31mred no JSON";
        assert!(text.ends_with(below), "{text}");
        let json = as_json(response());
        for part in [r#""result":{"available":1}"#, r#""result":"""#, r#""result":"no JSON""#] {
            assert!(json.contains(part), "{part}: {json}");
        }
    }

    #[test]
    fn how_long_it_is_kept_and_that_it_no_longer_is() {
        let mut response = accepted();
        assert!(as_text(response.clone()).contains("kept         for ever"));
        let time = Timestamp { seconds: 1_796_000_000, nanos: 0 };
        response.receipt.as_mut().expect("accepted").expire_time = Some(time);
        assert!(as_text(response).contains("kept         until 2026-11-30T"), "a day");
        let expired =
            GetReceiptResponse { state: ReceiptState::Expired.into(), ..Default::default() };
        assert!(as_text(expired).starts_with("state        EXPIRED\n"));
    }
}
