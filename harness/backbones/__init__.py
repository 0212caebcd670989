"""Networks: timm models and BN-Inception as embedders, and where their weights come from."""
