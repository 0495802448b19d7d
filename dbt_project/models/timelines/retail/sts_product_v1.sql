{{ timeline(source_model='sts_product', src_pk='hk_product', src_hashdiff='hd_status') }}
