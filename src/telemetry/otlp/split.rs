//! Requests too large for a collector, cut in halves.
//!
//! gRPC servers take 4 MiB by default and refuse the rest for good, with the whole batch: a few spans with
//! large attributes would take hundreds of others with them.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::logs::v1::{ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans};
use prost::Message;

/// 4 MiB with room for the frame's head.
const MAX_REQUEST: usize = 4 * 1024 * 1024 - 1024;

/// A request that is a list of items of one resource.
pub(super) trait Split: Message + Sized {
    /// The number of items.
    fn count(&self) -> usize;

    /// Two requests with half of the items each; the request itself when it has fewer than two.
    fn halves(self) -> Result<[Self; 2], Self>;
}

/// The requests that a request becomes, in order. A single item above the limit is sent as it is.
pub(super) fn within_limit<R: Split>(request: R) -> Vec<R> {
    let mut todo = vec![request];
    let mut done = Vec::new();
    while let Some(request) = todo.pop() {
        if request.encoded_len() <= MAX_REQUEST {
            done.push(request);
            continue;
        }
        match request.halves() {
            Ok([first, second]) => todo.extend([second, first]),
            Err(single) => done.push(single),
        }
    }
    done
}

/// Moves all but the first `keep` items of nested lists into new ones.
fn split_nested<O, I>(
    outer: &mut Vec<O>,
    mut keep: usize,
    items: impl Fn(&mut O) -> &mut Vec<I>,
    like: impl Fn(&O, Vec<I>) -> O,
) -> Vec<O> {
    let mut rest = Vec::new();
    for one in outer.iter_mut() {
        let list = items(one);
        let moved = list.split_off(keep.min(list.len()));
        keep -= list.len();
        if !moved.is_empty() {
            rest.push(like(one, moved));
        }
    }
    outer.retain_mut(|one| !items(one).is_empty());
    rest
}

impl Split for ExportTraceServiceRequest {
    fn count(&self) -> usize {
        self.resource_spans.iter().flat_map(|resource| &resource.scope_spans).map(|scope| scope.spans.len()).sum()
    }

    fn halves(mut self) -> Result<[Self; 2], Self> {
        let count = self.count();
        let [resource] = self.resource_spans.as_mut_slice() else { return Err(self) };
        if count < 2 {
            return Err(self);
        }
        let scope_spans = split_nested(
            &mut resource.scope_spans,
            count / 2,
            |scope| &mut scope.spans,
            |scope, spans| ScopeSpans { scope: scope.scope.clone(), schema_url: scope.schema_url.clone(), spans },
        );
        let rest =
            ResourceSpans { resource: resource.resource.clone(), schema_url: resource.schema_url.clone(), scope_spans };
        Ok([self, Self { resource_spans: vec![rest] }])
    }
}

impl Split for ExportLogsServiceRequest {
    fn count(&self) -> usize {
        self.resource_logs.iter().flat_map(|resource| &resource.scope_logs).map(|scope| scope.log_records.len()).sum()
    }

    fn halves(mut self) -> Result<[Self; 2], Self> {
        let count = self.count();
        let [resource] = self.resource_logs.as_mut_slice() else { return Err(self) };
        if count < 2 {
            return Err(self);
        }
        let scope_logs = split_nested(
            &mut resource.scope_logs,
            count / 2,
            |scope| &mut scope.log_records,
            |scope, log_records| ScopeLogs {
                scope: scope.scope.clone(),
                schema_url: scope.schema_url.clone(),
                log_records,
            },
        );
        let rest =
            ResourceLogs { resource: resource.resource.clone(), schema_url: resource.schema_url.clone(), scope_logs };
        Ok([self, Self { resource_logs: vec![rest] }])
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::trace::v1::Span;

    use super::*;

    fn request(sizes: &[&[usize]]) -> ExportTraceServiceRequest {
        let span = |size: &usize| Span { name: "x".repeat(*size), ..Span::default() };
        let scope = |sizes: &&[usize]| ScopeSpans { spans: sizes.iter().map(span).collect(), ..ScopeSpans::default() };
        let scope_spans = sizes.iter().map(scope).collect();
        ExportTraceServiceRequest { resource_spans: vec![ResourceSpans { scope_spans, ..ResourceSpans::default() }] }
    }

    fn sizes(requests: &[ExportTraceServiceRequest]) -> Vec<Vec<Vec<usize>>> {
        let scope = |scope: &ScopeSpans| scope.spans.iter().map(|span| span.name.len()).collect();
        requests.iter().map(|r| r.resource_spans[0].scope_spans.iter().map(scope).collect()).collect()
    }

    const MIB: usize = 1024 * 1024;

    #[test]
    fn what_fits_stays_whole() {
        assert_eq!(sizes(&within_limit(request(&[&[1, 2], &[3]]))), [[vec![1, 2], vec![3]]]);
        assert_eq!(within_limit(ExportTraceServiceRequest::default()).len(), 1);
    }

    #[test]
    fn what_does_not_fit_is_halved_in_order_until_it_does() {
        let requests = within_limit(request(&[&[MIB, MIB, 1], &[MIB, MIB, 2]]));
        assert_eq!(sizes(&requests), [vec![vec![MIB, MIB, 1]], vec![vec![MIB, MIB, 2]]]);
        let requests = within_limit(request(&[&[3 * MIB, 1], &[3 * MIB]]));
        assert_eq!(sizes(&requests), [vec![vec![3 * MIB]], vec![vec![1], vec![3 * MIB]]]);
        assert!(requests.iter().all(|request| request.encoded_len() <= MAX_REQUEST));
    }

    #[test]
    fn a_single_giant_is_sent_as_it_is() {
        let requests = within_limit(request(&[&[1, 9 * MIB, 2]]));
        assert_eq!(sizes(&requests), [vec![vec![1]], vec![vec![9 * MIB]], vec![vec![2]]]);
    }
}
