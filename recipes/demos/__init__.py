"""The demos of `convrec demo`: what each trains, of which size, and where a pretrained model comes from."""
