//! Names of export errors for `error.type`.

use std::borrow::Cow;

use opentelemetry_sdk::error::OTelSdkError;

pub(super) const OTHER: &str = "_OTHER";
pub(super) const TIMEOUT: &str = "timeout";

/// A low-cardinality name for an export error. The SDK's errors are text; of the text only a status
/// that it is known to hold is used, never the text itself.
pub(super) fn error_type(error: &OTelSdkError) -> Cow<'static, str> {
    match error {
        OTelSdkError::Timeout(_) => TIMEOUT.into(),
        OTelSdkError::AlreadyShutdown => "already_shutdown".into(),
        OTelSdkError::InternalFailure(text) => text_error_type(text),
    }
}

fn text_error_type(text: &str) -> Cow<'static, str> {
    if let Some((_, rest)) = text.split_once("gRPC code: ") {
        let code = rest.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
        return GRPC_CODES.iter().find(|(name, _)| *name == code).map_or(OTHER, |(_, error_type)| error_type).into();
    }
    if let Some((_, rest)) = text.split_once("status code: ") {
        let code: String = rest.chars().take_while(char::is_ascii_digit).collect();
        if code.len() == 3 {
            return code.into();
        }
    }
    let known = [
        ("network error", "network_error"),
        ("timed out", TIMEOUT),
        ("panicked", "panic"),
        ("already shutdown", "already_shutdown"),
    ];
    known.iter().find(|(part, _)| text.contains(part)).map_or(OTHER, |(_, error_type)| error_type).into()
}

/// `Debug` names of gRPC codes and the names that the semantic conventions use.
const GRPC_CODES: &[(&str, &str)] = &[
    ("Cancelled", "CANCELLED"),
    ("Unknown", "UNKNOWN"),
    ("InvalidArgument", "INVALID_ARGUMENT"),
    ("DeadlineExceeded", "DEADLINE_EXCEEDED"),
    ("NotFound", "NOT_FOUND"),
    ("AlreadyExists", "ALREADY_EXISTS"),
    ("PermissionDenied", "PERMISSION_DENIED"),
    ("ResourceExhausted", "RESOURCE_EXHAUSTED"),
    ("FailedPrecondition", "FAILED_PRECONDITION"),
    ("Aborted", "ABORTED"),
    ("OutOfRange", "OUT_OF_RANGE"),
    ("Unimplemented", "UNIMPLEMENTED"),
    ("Internal", "INTERNAL"),
    ("Unavailable", "UNAVAILABLE"),
    ("DataLoss", "DATA_LOSS"),
    ("Unauthenticated", "UNAUTHENTICATED"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_types_are_statuses_and_never_the_text() {
        for (text, error_type) in [
            ("TonicTracesClient export failed with gRPC code: Unavailable: transport error", "UNAVAILABLE"),
            ("TonicLogsClient export failed with gRPC code: Bogus", "_OTHER"),
            ("HTTP export failed with status code: 503", "503"),
            ("HTTP export failed with status code: secret", "_OTHER"),
            ("HTTP export failed: network error", "network_error"),
            ("network error: connecting timed out", "network_error"),
            ("operation timed out after 10s", "timeout"),
            ("http://user:secret@host refused", "_OTHER"),
        ] {
            assert_eq!(text_error_type(text), error_type);
        }
    }
}
