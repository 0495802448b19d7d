{#- Written by `lakehouse scaffold`, its own while unchanged: 1d4c0d8cf4009834 -#}
{{ timeline(source_model='sts_product', src_pk='hk_product', src_hashdiff='hd_status') }}
