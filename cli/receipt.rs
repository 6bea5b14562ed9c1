//! `counterfoil receipt`: what became of a key.

use std::process::ExitCode;

use counterfoil::proto::{
    event::hex,
    pb::{GetReceiptRequest, GetReceiptResponse, ReceiptState},
};
use serde_json::json;

use crate::{arguments, failure::Failure, link, numbers::grouped, output::say};

/// Prints the receipt; exit code 1 if there is none.
///
/// # Errors
/// [`Failure::Runtime`] when the publisher refuses or cannot be reached.
pub async fn run(arguments: arguments::Receipt) -> Result<ExitCode, Failure> {
    let mut client = link::publisher(&arguments.source.publisher)?;
    let request = GetReceiptRequest {
        log: arguments.source.log.clone(),
        key: arguments.key.clone(),
        ..Default::default()
    };
    let response = client
        .get_receipt(link::call(request))
        .await
        .map_err(|status| Failure::call(&arguments.source.publisher, &status))?
        .into_inner();
    let accepted = response.state() == ReceiptState::Accepted;
    say(if arguments.json { as_json(response) } else { as_text(response) });
    Ok(if accepted { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn state_word(response: &GetReceiptResponse) -> &'static str {
    let name = response.state().as_str_name();
    name.strip_prefix("RECEIPT_STATE_").unwrap_or(name)
}

fn as_text(response: GetReceiptResponse) -> String {
    let state = state_word(&response);
    let Some(receipt) = response.receipt else {
        return format!("state        {state}");
    };
    let time = receipt.accept_time.map(|time| time.to_string()).unwrap_or_default();
    [
        ("state", state.to_owned()),
        ("key", receipt.key),
        ("sequence", grouped(receipt.sequence.unwrap_or(-1))),
        ("version", grouped(receipt.subject_version.unwrap_or(-1))),
        ("accepted", time),
        ("fingerprint", hex(&receipt.fingerprint)),
        ("log id", receipt.log_id),
    ]
    .map(|(name, value)| format!("{name:<13}{value}"))
    .join("\n")
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
        })
    });
    json!({ "state": state, "receipt": receipt }).to_string()
}

#[cfg(test)]
mod tests {
    use counterfoil::proto::pb::Receipt;

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
    fn an_unknown_key_has_no_receipt() {
        let response = || GetReceiptResponse {
            state: ReceiptState::NeverAccepted.into(),
            ..Default::default()
        };
        assert_eq!(as_text(response()), "state        NEVER_ACCEPTED");
        assert_eq!(as_json(response()), r#"{"receipt":null,"state":"NEVER_ACCEPTED"}"#);
    }
}
