package task

import (
	"context"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/pawlq/pawl"
)

// InjectTrace returns middleware for pawl.Options.Middleware that carries the
// trace context of those who enqueue in the Meta of their jobs. Once for each
// call, inject writes what it finds in ctx, such as "traceparent" of W3C Trace
// Context, into a map. With OpenTelemetry it is
//
//	task.InjectTrace(func(ctx context.Context, meta map[string]string) {
//		otel.GetTextMapPropagator().Inject(ctx, propagation.MapCarrier(meta))
//	})
//
// What a request's Meta says itself goes before. What has no room in Meta, or is
// not UTF-8, is left out, shorter entries going first: no job is refused for its
// trace. See [ExtractTrace].
func InjectTrace(inject func(ctx context.Context, meta map[string]string)) pawl.EnqueueMiddleware {
	return func(next pawl.EnqueueFunc) pawl.EnqueueFunc {
		return func(ctx context.Context, reqs []*pawl.Request) ([]pawl.Receipt, error) {
			carried := map[string]string{}
			inject(ctx, carried)
			for _, r := range reqs {
				r.Meta = withTrace(r.Meta, carried)
			}
			return next(ctx, reqs)
		}
	}
}

// withTrace returns meta, which it may change, with what it lacks and has room
// for.
func withTrace(meta, carried map[string]string) map[string]string {
	room := pawl.MaxMetaSize
	for k, v := range meta {
		room -= len(k) + len(v)
	}
	size := func(k string) int { return len(k) + len(carried[k]) }
	keys := slices.Sorted(maps.Keys(carried))
	slices.SortStableFunc(keys, func(a, b string) int { return size(a) - size(b) })
	for _, k := range keys {
		v := carried[k]
		if _, own := meta[k]; own || size(k) > room || !utf8.ValidString(k) || !utf8.ValidString(v) {
			continue
		}
		if meta == nil {
			meta = map[string]string{}
		}
		meta[k] = v
		room -= size(k)
	}
	return meta
}

// ExtractTrace returns middleware for [Mux.Use] that gives handlers a context
// with what [InjectTrace] put into their job's Meta. With OpenTelemetry it is
//
//	task.ExtractTrace(func(ctx context.Context, meta map[string]string) context.Context {
//		return otel.GetTextMapPropagator().Extract(ctx, propagation.MapCarrier(meta))
//	})
//
// extract must not change meta, which may be nil, and returns a context made
// from ctx.
func ExtractTrace(extract func(ctx context.Context, meta map[string]string) context.Context) func(next Handler) Handler {
	return func(next Handler) Handler {
		return func(ctx context.Context, job *pawl.Job) ([]byte, error) {
			return next(extract(ctx, job.Meta), job)
		}
	}
}
