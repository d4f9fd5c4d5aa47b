"""Cards by their names and by what drivers call them."""

import pytest

from flatout.errors import ConfigError
from flatout.planning.cards import card_of_device, find_card


class TestCardOfDevice:
    @pytest.mark.parametrize(
        ("device", "card"),
        [
            ("Tesla T4", "T4"),
            ("NVIDIA A10G", "A10G"),
            ("NVIDIA A10", "A10"),
            ("NVIDIA L40S", "L40S"),
            ("NVIDIA L4", "L4"),
            ("NVIDIA GeForce RTX 3090", "RTX 3090"),
            ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti"),
            ("Quadro RTX 6000", "RTX 6000"),
            ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
            ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM4"),
            ("NVIDIA A100-PCIE-40GB", "A100 40GB PCIe"),
            ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
            ("Tesla V100-SXM2-16GB", "V100 16GB"),
            ("Tesla V100-SXM2-32GB", "V100 32GB"),
            ("Tesla V100-PCIE-32GB", "V100 PCIe 32GB"),
            ("NVIDIA H100 80GB HBM3", "H100 SXM5"),
            ("NVIDIA H100 PCIe", "H100 PCIe"),
            ("NVIDIA H200", "H200 SXM"),
        ],
    )
    def test_is_the_card_that_the_driver_means(self, device: str, card: str) -> None:
        found = card_of_device(device)
        assert found is not None
        assert found.name == card

    @pytest.mark.parametrize(
        "device", ["", "cpu", "emulated", "NVIDIA GeForce RTX 3080 Ti", "NVIDIA GeForce RTX 3070 Laptop GPU"]
    )
    def test_is_none_for_what_specs_do_not_have(self, device: str) -> None:
        assert card_of_device(device) is None


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="RTX 3090"):
        find_card("RTX3090")
