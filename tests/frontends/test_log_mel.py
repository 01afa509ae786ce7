"""Log-mel features beside closed forms and transformers' WhisperFeatureExtractor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dragoman.errors import DataError
from dragoman.frontends.log_mel import LogMel, hertz_from_mel, mel_from_hertz, pad_samples
from dragoman.frontends.sound_file import SAMPLE_RATE


@pytest.mark.parametrize("num_bands", [80, 128])
@pytest.mark.parametrize("num_samples", [1, 399, 16_000, 479_999, 480_000])
def test_features_equal_whisper_feature_extractor(num_bands: int, num_samples: int) -> None:
    transformers = pytest.importorskip("transformers", reason="the reference is not installed")
    samples_N = np.random.default_rng(0).standard_normal(num_samples).astype(np.float32) * 0.1
    extractor = transformers.WhisperFeatureExtractor(feature_size=num_bands)
    expected_FT = extractor(samples_N, sampling_rate=SAMPLE_RATE, return_tensors="np")["input_features"][0]
    features_TF = LogMel(num_bands, scaling="whisper")(pad_samples(samples_N, 30 * SAMPLE_RATE))
    np.testing.assert_allclose(features_TF, expected_FT.T, atol=1e-4)


def test_mel_scale_inverts_and_bands_have_equal_area() -> None:
    hertz = np.array([0.0, 200 / 3, 1000.0, 6400.0])
    np.testing.assert_allclose(mel_from_hertz(hertz), [0, 1, 15, 15 + 27])  # 27 steps from 1 kHz to 6.4 kHz
    np.testing.assert_allclose(hertz_from_mel(mel_from_hertz(hertz)), hertz)
    area_F = LogMel(20, window=4000).filters.sum(axis=0) * SAMPLE_RATE / 4000
    np.testing.assert_allclose(area_F, 1.0, rtol=1e-3)


def test_standardized_features_ignore_loudness() -> None:
    samples_N = np.random.default_rng(1).standard_normal(8000).astype(np.float32)
    loud_TF, quiet_TF = LogMel()(samples_N), LogMel()(samples_N * np.float32(0.001))
    assert loud_TF.shape == (50, 80)
    np.testing.assert_allclose(loud_TF, quiet_TF, atol=1e-4)
    assert abs(loud_TF.mean()) < 1e-5
    assert abs(loud_TF.std() - 1) < 1e-5


def test_silence_is_zero_and_nothing_is_refused() -> None:
    assert not LogMel()(np.zeros(1600, np.float32)).any()
    with pytest.raises(DataError, match="no sound"):
        LogMel()(np.zeros(0, np.float32))


@pytest.mark.parametrize("options", [{"hop": 0}, {"hop": 401}, {"window": 399}, {"num_bands": 201}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the window is even"):
        LogMel(**options)
