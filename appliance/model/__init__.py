"""Model shapes, weights and the decoder; torch lives here and in engine."""
